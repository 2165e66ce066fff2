// The parts of the page that are lists and bars: key figures, findings, categories, steps, gaps, devices, import.

function figures(trace) {
  const idle = trace.span_ns - trace.busy_ns;
  const tile = (label, value, more) => h('div', {class: 'tile'}, h('dt', {text: label}), h('dd', {}, h('strong', {text: value}), more ? h('small', {text: more}) : null));
  const devices = trace.devices.length + ((trace.page.left_out.devices) || 0);
  const kernels = trace.devices.reduce((sum, d) => sum + d.kernels, 0);
  return h('dl', {class: 'tiles'},
    tile('total (sum)', time(trace.total_ns), 'all durations added up'),
    tile('busy (union)', time(trace.busy_ns), trace.span_ns > 0 ? percent(trace.busy_ns / trace.span_ns) + ' of the span' : ''),
    tile('idle', time(idle), 'span ' + time(trace.span_ns) + (devices > 1 ? ' over ' + devices + ' ' + deviceWord(trace) + 's' : '')),
    tile(deviceWord(trace) === 'GPU' ? 'kernels' : 'operations', count(kernels), plural(trace.ranking.length + trace.page.ranking_rest.names, 'name')),
    trace.page.steps.count > 0 ? tile('step (median)', time(trace.page.steps.median_ns), plural(trace.page.steps.count, 'step')) : null);
}

/** A sentence begins with a capital (unless with a name) and ends with one full stop, however its writer put it. */
function sentence(text) {
  const shown = visible(text).replace(/^[a-z]+(?=[ ,])/, (word) => word[0].toUpperCase() + word.slice(1));
  return shown === '' || /[.!?:]$/.test(shown) ? shown : shown + '.';
}

function findings(trace) {
  const diagnosis = trace.diagnosis || {}, list = diagnosis.findings || trace.findings;
  if (!list) return null;
  const base = diagnosis.base_ns || trace.busy_ns;
  const factor = (saved) => (saved < base ? speedup(base / (base - saved)) : 'over 100x');
  const gain = (f) => (f.ceiling_ns > 0 ? h('p', {class: 'gain'}, 'Gain about ', h('strong', {text: time(f.gain_ns) + ' (' + factor(f.gain_ns) + ')'}),
    ', at most ' + time(f.ceiling_ns) + ' (' + factor(f.ceiling_ns) + ').') : null);
  return section('findings', 'Findings',
    list.length ? note('Gains are of the ' + time(base) + ' that the ' + deviceWord(trace) + ' worked or waited inside steps. They overlap: do not add them.')
                : note('Nothing stands out: no finding passed its threshold.'),
    h('ol', {class: 'findings'}, list.map((f) => h('li', {}, h('h3', {text: sentence(f.title)}), gain(f),
      f.evidence ? h('p', {text: sentence(f.evidence)}) : null,
      f.advice ? h('p', {}, h('strong', {text: 'Remedy: '}), sentence(f.advice)) : null))));
}

function categories(trace, filter) {
  const largest = trace.categories.reduce((most, c) => Math.max(most, c.share), 0);
  const rows = trace.categories.map((c) => {
    const fill = h('span', {class: 'fill'});
    fill.style.width = (largest > 0 ? c.share / largest * 100 : 0).toFixed(2) + '%';
    fill.style.backgroundColor = colourOf(trace, c.id);
    return h('li', {},
      h('button', {type: 'button', class: 'inline', title: 'Show its kernels in the ranking', click: () => filter(c.id), text: visible(c.label)}),
      h('span', {class: 'track', 'aria-hidden': 'true'}, fill),
      h('span', {class: 'value'}, h('strong', {text: percent(c.share)}), ' ' + milliseconds(c.total_ns) + ' ms, ' + plural(c.calls, 'call')));
  });
  return section('categories', 'Categories', h('ul', {class: 'bars'}, rows),
    note('Share of the summed time of all ' + deviceWord(trace) + ' work. A category’s name shows its kernels in the ranking. No rule matched ' +
         percent(trace.other_share_of_kernels) + ' of kernel time (“Other”).'));
}

/** The ranking again without durations that cannot be real; nothing when all can. */
function plausible(trace) {
  const rows = trace.ranking_without_defects || [];
  if (rows.length === 0) return null;
  const left = trace.devices.reduce((sum, d) => sum + d.clock_defects, 0);
  const columns = [{label: 'total ms', numeric: true}, {label: 'share', numeric: true}, {label: 'calls', numeric: true}, {label: 'kernel'}];
  return section('plausible', 'Ranking without clock defects',
    note('Without ' + plural(left, 'call') + ' whose duration cannot be real (see the findings). The first ' + count(Math.min(rows.length, 15)) + ' of ' + plural(rows.length, 'name') + '.'),
    plainTable('Ranking without clock defects', columns,
      rows.slice(0, 15).map((r) => [milliseconds(r.total_ns), percent(r.share), count(r.calls), kernelName(trace, r.name, 90)])));
}

function gaps(trace) {
  const entries = trace.devices.flatMap((d) => d.holes.map((hole) => ({hole, device: d})));
  entries.sort((a, b) => b.hole.duration_ns - a.hole.duration_ns);
  const shown = entries.slice(0, 20), several = trace.devices.length > 1;
  const total = trace.devices.reduce((sum, d) => sum + d.hole_count, 0);
  const columns = [{label: 'idle', numeric: true}, {label: 'begins at', numeric: true}, ...(several ? [{label: deviceWord(trace)}] : []),
                   {label: 'ended before it'}, {label: 'first after it'}];
  const rows = shown.map(({hole, device}) => [time(hole.duration_ns), time(hole.offset_ns), ...(several ? [deviceName(trace, device)] : []),
    kernelName(trace, hole.before, 90), kernelName(trace, hole.after, 90)]);
  const sum = shown.reduce((ns, e) => ns + e.hole.duration_ns, 0), idle = trace.span_ns - trace.busy_ns;
  return section('gaps', 'Idle gaps',
    shown.length ? note('The longest of ' + plural(total, 'gap') + ' in which no work ran on the device' + (several ? ' (per ' + deviceWord(trace) + ')' : '') +
                        '. Those shown are ' + percent(idle > 0 ? sum / idle : 0) + ' of all idle time (' + time(idle) + '). Times count from the first work of the device.')
                 : note('No gaps: the device always had work between the first and the last event.'),
    shown.length ? plainTable('Longest idle gaps', columns, rows) : null);
}

function deviceName(trace, d) {
  return visible([deviceWord(trace) + ' ' + String(d.id).replace(/^GPU\s*/i, ''), d.rank_label].filter(Boolean).join(' '));
}

function devices(trace) {
  const rows = trace.devices.map((d) => [deviceName(trace, d) + (d.name ? ', ' + visible(d.name) : '') + (d.sm_count > 0 ? ', ' + d.sm_count + ' SMs' : ''), count(d.events),
    milliseconds(d.total_ns), milliseconds(d.busy_ns), milliseconds(d.span_ns), milliseconds(d.idle_ns),
    d.span_ns > 0 ? percent(d.busy_ns / d.span_ns) : '', count(d.streams.length)]);
  const columns = ['device', 'events', 'total ms (sum)', 'busy ms (union)', 'span ms', 'idle ms', 'busy', 'streams'].map((label, i) => ({label, numeric: i > 0}));
  const windows = trace.devices.filter((d) => d.windows.length > 1).flatMap((d) => d.windows.map((w, i) => h('li', {text:
    deviceName(trace, d) + ', stretch ' + (i + 1) + ': ' + time(w.end_ns - w.start_ns) + ', busy ' +
    percent(w.end_ns > w.start_ns ? w.busy_ns / (w.end_ns - w.start_ns) : 1) + ', ' + plural(w.events, 'event')})));
  const streams = trace.devices.flatMap((d) => d.streams.map((s) => [deviceName(trace, d), visible(s.id), count(s.events), milliseconds(s.total_ns), milliseconds(s.busy_ns),
    count(s.overlapping_events), count(s.implausible_events)]));
  return section('devices', 'Devices and streams', plainTable('Devices', columns, rows),
    windows.length ? [note('A dominating gap splits the recording; each stretch for itself:'), h('ul', {}, windows)] : null,
    h('details', {}, h('summary', {text: plural(streams.length, 'stream')}), plainTable('Streams',
      ['device', 'stream', 'events', 'total ms (sum)', 'busy ms (union)', 'overlapping', 'implausible'].map((label, i) => ({label, numeric: i > 1})), streams)));
}

function importSection(trace) {
  const r = trace.import, odd = Object.entries(r.counts || {}).filter(([, n]) => n > 0);
  const list = (map) => Object.entries(map || {}).sort((a, b) => b[1] - a[1]).map(([key, n]) => (visible(key) || '(none)') + ' ' + count(n)).join(', ');
  const facts = [['file', visible(trace.file)], ['written by', visible(trace.producer) + ' (' + visible(trace.form) + ')'],
    ['size', bytes(r.file_bytes) + (r.text_bytes !== r.file_bytes ? ', ' + bytes(r.text_bytes) + ' decompressed' : '')],
    ['whole events read', count(r.events)], ['events by category', list(r.categories) || 'none'],
    ['events by phase', list(r.phases) || 'none'], ['odd things met', odd.map(([key, n]) => key.replaceAll('_', ' ') + ' ' + count(n)).join(', ') || 'none']];
  for (const [name, value] of [['host', trace.host], ['runtime', trace.runtime], ['rank', trace.rank === null ? '' : trace.rank + (trace.world_size ? ' of ' + trace.world_size : '')]])
    if (value !== '' && value !== undefined) facts.push([name, visible(value)]);
  const left = Object.entries(trace.page.left_out).filter(([path]) => path !== 'ranking');
  const lanes = (trace.lanes || []).slice().sort((a, b) => b.total_ns - a.total_ns);
  return section('import', 'Import',
    h('dl', {class: 'facts'}, facts.map(([name, value]) => [h('dt', {text: name}), h('dd', {text: value})])),
    r.notes.length ? h('ul', {}, r.notes.map((text) => h('li', {text: sentence(text)}))) : null,
    lanes.length ? h('details', {}, h('summary', {text: plural(lanes.length, 'row') + ' of the file'}), plainTable('Rows of the file',
      [{label: 'process'}, {label: 'thread'}, {label: 'events', numeric: true}, {label: 'total ms', numeric: true}, {label: 'counted as work'}],
      lanes.map((l) => [visible(l.process), visible(l.thread), count(l.events), milliseconds(l.total_ns), l.work ? 'yes' : 'no']))) : null,
    left.map(([path, n]) => note('To bound the size of this file, ' + count(n) + ' entries of ' + visible(path) + ' are left out.')));
}

/** Red notice of a damaged file: nobody should take its numbers for the whole. */
function damage(trace) {
  const r = trace.import;
  if (!r.partial) return null;
  return h('div', {class: 'partial', role: 'alert'}, h('p', {}, h('strong', {text: 'PARTIAL: '}),
      'the file is damaged or cut at byte ' + count(r.partial_offset) + '. Every whole event that was found is counted (' + count(r.events) +
      ' in all); what is missing cannot be known.'),
    h('ul', {}, r.damages.map((d) => h('li', {}, 'byte ' + count(d.offset) + ': ' + visible(d.what), d.context ? [' ', h('code', {text: visible(d.context)})] : null))),
    r.damage_count > r.damages.length ? h('p', {text: count(r.damage_count - r.damages.length) + ' more damaged places are not listed.'}) : null);
}

// ---- Steps -----------------------------------------------------------------------------------------------------------

class StepsPlot {
  constructor(trace) {
    const steps = this.steps = trace.page.steps;
    const children = [steps.sentence ? h('p', {text: sentence(steps.sentence)}) : note('No steps were found in this trace: no step annotations, graph launches or repeating kernel sequence.')];
    if (steps.count > 2) {
      this.box = h('div', {class: 'plot', tabindex: '0', role: 'application', 'aria-label': 'Time of each step; arrow keys read the steps', keydown: (e) => this.key(e)});
      this.reading = h('p', {class: 'note', role: 'status'});
      children.push(this.box, this.reading);
      if (steps.step.length < steps.count)
        children.push(note('Of ' + count(steps.count) + ' steps the ' + count(steps.step.length) + ' shortest and longest of equal stretches are drawn, to bound the size of this file.'));
    } else if (steps.count > 0) {
      const columns = ['step', 'time', 'busy', 'kernels'].map((label) => ({label, numeric: true}));
      const table = plainTable('Steps', columns, steps.step.map((n, i) => [n, time(steps.duration[i]), time(steps.busy[i]), count(steps.kernels[i])]));
      table.classList.add('narrow');
      children.push(table);
    }
    this.element = section('steps', 'Steps', ...children);
    this.at = -1;
  }

  draw() {
    if (!this.box) return;
    if (this.plot) this.plot.destroy();
    const s = this.steps, colours = scheme(), width = Math.max(260, this.box.clientWidth);
    const axis = {stroke: colours.soft, grid: {stroke: colours.line, width: 1}, ticks: {stroke: colours.line, width: 1}};
    const line = (label, stroke, dash) => ({label, stroke, width: 1.5, dash, points: {show: s.step.length < 120, size: 5}, value: (u, v) => (v === null ? '' : v.toFixed(3) + ' ms')});
    this.plot = new uPlot({
      width, height: Math.min(280, Math.max(200, width * 0.35)), scales: {x: {time: false}, y: {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]}},
      axes: [{...axis, values: (u, list) => list.map((v) => (Number.isInteger(v) ? count(v) : ''))}, {...axis, label: 'ms', size: 62}],
      series: [{label: 'step', value: (u, v) => (v === null ? '' : count(v))}, line('time', '#3f7fe0'), line('busy', '#e0602f', [6, 4])],
      hooks: {setCursor: [(u) => this.read(u.cursor.idx)]},
    }, [s.step, s.duration.map((ns) => ns / 1e6), s.busy.map((ns) => ns / 1e6)], this.box);
  }

  read(index) {
    if (index === null || index === undefined) return;
    this.at = index;
    const s = this.steps;
    this.reading.textContent = 'Step ' + count(s.step[index]) + ': ' + time(s.duration[index]) + ', busy ' + time(s.busy[index]) + ', ' + plural(s.kernels[index], 'kernel') + '.';
  }

  key(event) {
    const last = this.steps.step.length - 1, to = {ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = Math.min(last, Math.max(0, to));
    this.plot.setCursor({left: this.plot.valToPos(this.steps.step[index], 'x'), top: this.plot.valToPos(this.steps.duration[index] / 1e6, 'y')});
    this.read(index);
  }
}
