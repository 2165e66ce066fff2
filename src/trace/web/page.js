// Puts the page together. The answer stands first; a trace of several is chosen at the top.

const report = JSON.parse(document.getElementById('data').textContent);
const root = document.getElementById('report');

function subtitle(trace) {
  const device = trace.devices.find((d) => d.name);
  return [trace.producer, device ? device.name + (trace.devices.length > 1 ? ' (' + trace.devices.length + ' ' + deviceWord(trace) + 's)' : '') : '', trace.runtime,
          trace.rank === null ? '' : 'rank ' + trace.rank + (trace.world_size ? ' of ' + trace.world_size : '')]
    .filter(Boolean).map(visible).join(' · ');
}

function traceBody(trace) {
  const empty = trace.ranking.length === 0;
  const parts = [h('p', {class: 'headline', text: visible(trace.headline)}), damage(trace)];
  if (!empty) {
    const ranking = new Ranking(trace), timeline = new Timeline(trace), steps = new StepsPlot(trace);
    const filter = (id) => {
      ranking.showCategory(id);
      ranking.element.scrollIntoView();
      ranking.select.focus({preventScroll: true});
    };
    drawings = [timeline, steps];
    parts.push(figures(trace), null, ranking.element, plausible(trace), findings(trace), categories(trace, filter), timeline.element, steps.element, gaps(trace), devices(trace));
  }
  parts.push(importSection(trace));
  const shown = parts.filter(Boolean);
  const sections = shown.filter((p) => p.tagName === 'SECTION');
  if (!empty) {
    const links = h('nav', {'aria-label': 'Parts of the report'}, sections.map((s) => h('a', {href: '#' + s.id, text: s.querySelector('h2').textContent})));
    shown.splice(shown.indexOf(sections[0]), 0, links);
  }
  return shown;
}

/** Several files: what they are to each other, and one line for each, to compare and to choose. */
function overview(current) {
  const rows = report.traces.map((t, i) => [
    h('button', {type: 'button', class: 'inline', 'aria-current': i === current ? 'true' : null, click: () => show(i), text: visible(t.file)}),
    t.rank === null ? '' : String(t.rank), milliseconds(t.total_ns), milliseconds(t.busy_ns), milliseconds(t.span_ns),
    milliseconds(t.span_ns - t.busy_ns), t.import.partial ? 'PARTIAL' : 'whole']);
  const columns = ['file', 'rank', 'total ms (sum)', 'busy ms (union)', 'span ms', 'idle ms', 'file is'].map((label, i) => ({label, numeric: i > 0 && i < 6}));
  return section('files', plural(rows.length, 'file'), plainTable('All files', columns, rows));
}

function show(index) {
  const trace = report.traces[index];
  drawings = [];
  const several = report.traces.length > 1;
  const picker = several ? h('div', {class: 'tools'}, h('label', {}, 'Report of the file ', h('select', {change: (e) => show(Number(e.target.value))},
    report.traces.map((t, i) => h('option', {value: i, selected: i === index, text: visible(t.file)}))))) : null;
  root.replaceChildren(...[
    several ? [h('header', {}, h('h1', {text: plural(report.traces.length, 'trace')})), diffSection(report.diff, report.traces), ranksSection(report.ranks), overview(index), picker] : null,
    h('header', {}, h(several ? 'h2' : 'h1', {text: visible(trace.file)}), h('p', {class: 'note', text: subtitle(trace)})),
    traceBody(trace), h('footer', {}, note('Made by fathom trace. Everything is in this file; it loads nothing.'))].flat().filter(Boolean));
  redraw();
}

show(0);
document.documentElement.dataset.ready = 'yes';
