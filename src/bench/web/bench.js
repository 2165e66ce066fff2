// The page of a load test: the answer, the table, and plots that can be read with the mouse and with keys.

const report = JSON.parse(document.getElementById('data').textContent);
const root = document.getElementById('report');
const colours = ['#3f7fe0', '#e0602f', '#23a094', '#8059d0', '#b58a2a', '#cf3a56', '#4c9f45', '#75828f'];
const fit = report.step_time_fit;

function loadText(level) {
  return level.rate === undefined ? count(level.concurrency) : count(level.rate) + ' requests a second';
}

/** Seconds as milliseconds, three digits or more. */
function ms(seconds) {
  const v = seconds * 1e3;
  return v.toFixed(v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : 3);
}

function rate(v) {
  return v.toFixed(v >= 1000 ? 0 : v >= 10 ? 1 : 2);
}

/** A plot with a line below it that says in words what is under the cursor; arrows, Home and End move it. */
class Plot {
  /** `series`: {label, values, colour, dash, points, band}; `read(i)`: the words for point i. */
  constructor(id, title, about, options) {
    Object.assign(this, options);
    this.at = this.x.length - 1;
    this.box = h('div', {class: 'plot', tabindex: '0', role: 'group', 'aria-label': title + '. Arrow keys move along the points.',
                         keydown: (e) => this.key(e)});
    this.reading = h('p', {class: 'note', role: 'status'});
    this.element = section(id, title, note(about), this.box, this.reading);
  }

  draw() {
    this.plot?.destroy();
    const c = scheme(), width = Math.max(260, this.box.clientWidth);
    const axis = {stroke: c.soft, grid: {stroke: c.line, width: 1}, ticks: {stroke: c.line, width: 1}};
    const number = (list) => list.map((v) => (v === null ? '' : count(v)));
    const scales = {x: {time: false, distr: this.log ? 3 : 1, log: 2}, y: {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]}};
    const axes = [{...axis, label: this.xLabel, values: (u, list) => number(list), size: 44},
                  {...axis, label: this.yLabel, values: (u, list) => number(list), size: 66}];
    if (this.right) {
      scales.right = {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]};
      axes.push({...axis, side: 1, scale: 'right', label: this.right, grid: {show: false}, values: (u, list) => number(list), size: 60});
    }
    const series = [{label: this.xLabel, value: (u, v) => (v === null ? '' : count(+v.toFixed(3)))}];
    for (const s of this.series)
      series.push({label: s.label, stroke: s.hidden ? 'transparent' : s.colour, width: s.points === 'only' ? 0 : 1.7, dash: s.dash, scale: s.right ? 'right' : 'y',
                   points: {show: Boolean(s.points), size: 7, fill: s.colour, stroke: s.colour}, spanGaps: true,
                   paths: s.points === 'only' ? () => null : undefined,
                   value: (u, v) => (v === null || v === undefined ? '' : count(+v.toPrecision(4)))});
    const bands = this.band ? [{series: this.band, fill: '#3f7fe033'}] : [];
    this.plot = new uPlot({
      width, height: Math.min(320, Math.max(220, width * 0.36)), scales, axes, series, bands,
      hooks: {setCursor: [(u) => this.show(u.cursor.idx)], drawClear: [(u) => this.shade(u)]},
    }, [this.x, ...this.series.map((s) => s.values)], this.box);
    this.show(this.at);
  }

  /** The steady stretch as a lighter ground. */
  shade(u) {
    if (!this.stretch) return;
    const left = u.valToPos(this.stretch[0], 'x', true), right = u.valToPos(this.stretch[1], 'x', true);
    u.ctx.save();
    u.ctx.fillStyle = '#23a09426';
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
    u.ctx.restore();
  }

  show(index) {
    if (index === null || index === undefined || index < 0) return;
    this.at = index;
    this.reading.textContent = this.read(index);
  }

  key(event) {
    const to = {ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.x.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = Math.min(this.x.length - 1, Math.max(0, to));
    const first = this.series.find((s) => typeof s.values[index] === 'number');
    this.plot.setCursor({left: this.plot.valToPos(this.x[index], 'x'), top: first ? this.plot.valToPos(first.values[index], first.right ? 'right' : 'y') : 0});
    this.show(index);
  }
}

function headline() {
  const best = report.levels.reduce((a, b) => (b.output_tokens_per_second > a.output_tokens_per_second ? b : a));
  let text = rate(best.output_tokens_per_second) + ' tokens/s at ' + (best.rate === undefined ? plural(best.concurrency, 'open request') : loadText(best)) + ', ' + ms(best.seconds.itl.p50) + ' ms between the tokens of one';
  if (fit.b_seconds) text += '; for ever more requests it tends to ' + rate(fit.asymptote_tokens_per_second);
  return text + '.';
}

function table() {
  const rates = [['load', loadText], ['tokens/s', (l) => rate(l.output_tokens_per_second)],
    ['of each', (l) => rate(l.steady.open_mean > 0 ? l.output_tokens_per_second / l.steady.open_mean : 0)], ['with prompts', (l) => rate(l.total_tokens_per_second)],
    ['step ms', (l) => ms(l.step_seconds)], ['steps/s', (l) => (l.engine ? rate(l.engine.steps_per_second) : '-')],
    ['tokens a step', (l) => (l.engine ? l.engine.tokens_per_step.toFixed(2) : '-')],
    ['drafts right', (l) => (l.engine && l.engine.drafts_verified > 0 ? percent(l.engine.drafts_accepted / l.engine.drafts_verified) : '-')], ['tokens a piece', (l) => l.tokens_per_piece.toFixed(2)], ['cached', (l) => percent(l.cached_share_of_prompts)],
    ['errors', (l) => count(l.errors)], ['steady s', (l) => l.steady.seconds.toFixed(1)], ['spread', (l) => (l.repeats.length > 1 ? percent(l.spread) : '-')]];
  const times = [['load', loadText]];
  for (const [name, key] of [['TTFT', 'ttft'], ['ITL', 'itl'], ['TPOT', 'tpot'], ['whole', 'e2e']])
    for (const p of ['p50', 'p90', 'p99']) times.push([name + ' ' + p, (l) => ms(l.seconds[key][p])]);
  const made = (label, columns) => plainTable(label, columns.map(([text]) => ({label: text, numeric: true})), report.levels.map((l) => columns.map(([, value]) => value(l))));
  return section('levels', 'Levels of load', made('Rates', rates),
    note('Rates are of the steady stretch, the longest one at full load. Of several repeats the median is shown; spread is half their range over their mean. Steps are those of the engine, where it tells them; drafts right: of those that were verified.'), made('Times in milliseconds', times),
    note('Milliseconds, of the requests sent in that stretch: to the first token (TTFT), between pieces of one stream (ITL), a token (TPOT), whole.'));
}

function throughput(levels) {
  const x = levels.map((l) => l.concurrency), series = [{label: 'output tokens/s', values: levels.map((l) => l.output_tokens_per_second), colour: colours[0], points: true}];
  if (fit.b_seconds) series.push({label: 'of the fit', values: x.map((n) => levels[0].tokens_per_piece * n / (fit.a_seconds + fit.b_seconds * n)), colour: colours[7], dash: [5, 4]});
  series.push({label: 'of each request', values: levels.map((l) => l.output_tokens_per_second / Math.max(1e-9, l.steady.open_mean)), colour: colours[1], points: true, right: true});
  return new Plot('throughput', 'Throughput', 'Output tokens a second of all requests together (left), and of each of them (right).',
    {x, series, xLabel: 'open requests', yLabel: 'tokens/s', right: 'tokens/s of each', log: x[x.length - 1] >= 8,
     read: (i) => loadText(levels[i]) + ' open: ' + rate(levels[i].output_tokens_per_second) + ' tokens/s, ' + rate(series[series.length - 1].values[i]) + ' each.'});
}

function latency(levels, key, id, title, about) {
  const series = ['p50', 'p90', 'p99'].map((p, i) => ({label: p, values: levels.map((l) => l.seconds[key][p] * 1e3), colour: colours[i], points: true}));
  const x = levels.map((l) => l.concurrency);
  return new Plot(id, title, about, {x, series, xLabel: 'open requests', yLabel: 'ms', log: x[x.length - 1] >= 8,
    read: (i) => loadText(levels[i]) + ' open: ' + ['p50', 'p90', 'p99'].map((p) => p + ' ' + ms(levels[i].seconds[key][p]) + ' ms').join(', ') + '.'});
}

/** All repeats as points, the line and the band in which it lies with 95 %. */
function fitPlot() {
  if (!fit.b_seconds) return section('fit', 'Step time', note('No fit of step time: ' + visible(fit.none) + '.'));
  const points = report.levels.flatMap((l) => l.repeats.filter((r) => r.step_seconds > 0 && l.concurrency).map((r) => [r.steady.open_mean, r.step_seconds * 1e3]));
  const most = Math.max(...points.map((p) => p[0])), grid = [...Array(25)].map((_, i) => most * i / 24);
  const x = [...new Set([...grid, ...points.map((p) => p[0])])].sort((a, b) => a - b);
  const line = (n) => (fit.a_seconds + fit.b_seconds * n) * 1e3;
  const flat = Math.max(0, fit.a_error ** 2 - (fit.b_error * fit.center) ** 2);
  const error = (n) => Math.sqrt(flat + (fit.b_error * (n - fit.center)) ** 2) * 1e3;
  const own = (n) => points.filter((p) => p[0] === n).map((p) => p[1]);
  const repeats = Math.max(...x.map((n) => own(n).length));
  const series = [{label: 'upper', values: x.map((n) => line(n) + error(n)), colour: '#3f7fe066'}, {label: 'lower', values: x.map((n) => Math.max(0, line(n) - error(n))), colour: '#3f7fe066'},
                  {label: 'a + b N', values: x.map(line), colour: colours[0]}];
  for (let k = 0; k < repeats; ++k) series.push({label: k ? 'and ' + (k + 1) : 'measured', values: x.map((n) => own(n)[k] ?? null), colour: colours[1], points: 'only'});
  const high = fit.asymptote_high === null ? 'no upper limit' : rate(fit.asymptote_high);
  return new Plot('fit', 'Step time', 'Time between two pieces of one stream over the open requests N: ' + ms(fit.a_seconds) + ' ms (±' + ms(fit.a_error) + ') + ' + ms(fit.b_seconds) + ' ms (±' +
    ms(fit.b_error) + ') x N. Without end it tends to ' + rate(fit.asymptote_tokens_per_second) + ' tokens/s (' + rate(fit.asymptote_low) + ' to ' + high + '). The band holds the line with 95 %.',
    {x, series, band: [1, 2], xLabel: 'open requests', yLabel: 'ms',
     read: (i) => 'N = ' + count(+x[i].toFixed(2)) + ': the fit says ' + line(x[i]).toFixed(3) + ' ms' + (own(x[i]).length ? ', measured ' + own(x[i]).map((v) => v.toFixed(3)).join(', ') + ' ms' : '') + '.'});
}

/** One level in time: what was open, what came out, and which stretch counts. */
function timeline() {
  const shown = report.levels.filter((l) => l.page.timeline.open.length);
  if (!shown.length) return null;
  const holder = h('div', {});
  const picker = h('label', {}, 'Load ', h('select', {change: (e) => choose(Number(e.target.value))}, shown.map((l, i) => h('option', {value: i, selected: i === shown.length - 1, text: loadText(l)}))));
  const part = section('time', 'One level in time', note('The shaded stretch is the one that rates are of: the longest at full load. Before it is the ramp, behind it the drain.'), h('div', {class: 'tools'}, picker), holder);
  const drawing = {element: part, plot: null, draw: () => drawing.plot.draw()};
  function choose(index) {
    const l = shown[index], t = l.page.timeline, x = t.open.map((_, i) => t.begin + (i + 0.5) * t.width);
    drawing.plot = new Plot('time-plot', 'Open requests and output', '', {x, stretch: l.page.steady, xLabel: 'seconds', yLabel: 'tokens/s', right: 'open requests',
      series: [{label: 'output tokens/s', values: t.rate, colour: colours[0]}, {label: 'open requests', values: t.open, colour: colours[1], right: true}],
      read: (i) => x[i].toFixed(2) + ' s: ' + rate(t.open[i]) + ' open, ' + rate(t.rate[i]) + ' tokens/s; steady from ' + l.page.steady[0].toFixed(2) + ' to ' + l.page.steady[1].toFixed(2) + ' s.'});
    holder.replaceChildren(drawing.plot.box, drawing.plot.reading);
    if (part.isConnected) drawing.plot.draw();
  }
  choose(shown.length - 1);
  return drawing;
}

function curves(key, id, title) {
  const levels = report.levels.filter((l) => l.page[key].length === 101);
  if (!levels.length) return null;
  const x = [...Array(101)].map((_, i) => i);
  const series = levels.map((l, i) => ({label: 'load ' + loadText(l), values: l.page[key].map((v) => v * 1e3), colour: colours[i % colours.length], dash: i >= colours.length ? [4, 3] : undefined}));
  return new Plot(id, title, 'Share of the values (percent) that are at most so long.', {x, series, xLabel: 'percentile', yLabel: 'ms',
    read: (i) => 'p' + i + ': ' + series.map((s) => s.label + ' ' + s.values[i].toFixed(2) + ' ms').join(', ') + '.'});
}

function facts() {
  const w = report.workload, range = ([low, high]) => (low === high ? count(low) : count(low) + ' to ' + count(high)), last = report.levels[report.levels.length - 1];
  const tile = (name, value, small) => h('div', {class: 'tile'}, h('dt', {text: name}), h('dd', {}, h('strong', {text: value}), h('small', {text: small})));
  return h('dl', {class: 'tiles'}, tile('prompts', count(Math.round(last.mean_prompt_tokens)) + ' tokens', range(w.input_tokens) + ' asked for, ' + visible(w.content)),
    tile('outputs', count(Math.round(last.mean_output_tokens)) + ' tokens', range(w.output_tokens) + ' asked for'),
    tile('thinking', rate(last.reasoning_tokens_per_second) + ' tokens/s', 'part of the output, at the last level'),
    tile('whole run', rate(last.whole_run_output_tokens_per_second) + ' tokens/s', 'last level with ramp and drain'),
    tile('own cost', (last.client_cpu_seconds_per_token * 1e6).toFixed(0) + ' us', 'processor time of this program a token'));
}

function page() {
  const parts = [h('header', {}, h('h1', {text: visible(report.target)}), h('p', {class: 'note', text: 'Load test of ' + visible(report.started)}))];
  if (!report.levels.length) return [...parts, h('p', {class: 'headline', text: 'Nothing was measured.'})];
  const closed = report.levels.filter((l) => l.concurrency);
  const plots = [closed.length > 1 ? throughput(closed) : null, closed.length > 1 ? latency(closed, 'ttft', 'ttft', 'Time to first token', 'From sending a request to its first piece with output.') : null,
    closed.length > 1 ? latency(closed, 'itl', 'itl', 'Between tokens', 'Between two pieces of one stream (ITL).') : null, closed.length ? fitPlot() : null, timeline(),
    curves('ttft', 'ttft-curve', 'Time to first token, all percentiles'), curves('itl', 'itl-curve', 'Between tokens, all percentiles')].filter(Boolean);
  drawings = plots.filter((p) => p.draw);
  const sections = [table(), ...plots.map((p) => p.element || p)];
  if (report.remarks.length) sections.splice(1, 0, section('remarks', 'What to know', h('ul', {}, report.remarks.map((text) => h('li', {text: visible(text)})))));
  return [...parts, h('p', {class: 'headline', text: headline()}), facts(),
    h('nav', {'aria-label': 'Parts of the report'}, sections.map((s) => h('a', {href: '#' + s.id, text: s.querySelector('h2').textContent}))), ...sections,
    h('footer', {}, note('Made by fathom bench. Everything is in this file; it loads nothing.'))];
}

root.replaceChildren(...page());
redraw();
document.documentElement.dataset.ready = 'yes';
