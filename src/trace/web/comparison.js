// Several files: before and after, or the ranks of one run.

/** A change with its sign; what rounds to nothing has none. */
function withSign(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : (value > 0 ? '+' : '') + text;
}

function signed(ns) {
  return withSign(ns / 1e6, 3);
}

function points(before, after) {
  return withSign((after - before) * 100, 1);
}

function diffSection(diff, traces) {
  if (!diff) return null;
  const first = visible(traces[0].file), second = visible(traces[1] ? traces[1].file : '');
  const columns = (label) => [{label}, ...['before ms', 'after ms', 'change ms', 'share before', 'share after', 'share, points'].map((l) => ({label: l, numeric: true}))];
  const figures = (r) => [milliseconds(r.before_ns), milliseconds(r.after_ns), signed(r.after_ns - r.before_ns), percent(r.share_before), percent(r.share_after),
                          points(r.share_before, r.share_after)];
  const words = {added: 'new', gone: 'gone', renamed: 'renamed'};
  const kernel = (r) => [Object.hasOwn(words, r.change) ? h('strong', {text: words[r.change] + ' '}) : null, kernelName(traces[0], r.name),
                         r.change === 'renamed' ? [' was ', kernelName(traces[0], r.old_name)] : null];
  const shown = diff.kernels.slice(0, 25), rest = diff.kernels.slice(25);
  const table = (rows) => plainTable('Kernels by change', columns('kernel'), rows.map((r) => [kernel(r), ...figures(r)]));
  return section('diff', 'Before and after',
    h('p', {class: 'headline', text: visible(diff.headline)}),
    note('Before: ' + first + '. After: ' + second + '. ' + (diff.per_step ? 'Times are for one step.' : 'Times are of the whole recordings.') +
         ' The share of an unchanged kernel rises when others shrink: read the change in time first.'),
    plainTable('Measures', [{label: 'measure'}, {label: 'before ms', numeric: true}, {label: 'after ms', numeric: true}, {label: 'change ms', numeric: true}],
      diff.measures.map((m) => [visible(m.name), milliseconds(m.before_ns), milliseconds(m.after_ns), signed(m.after_ns - m.before_ns)])),
    h('h3', {text: 'Categories'}), plainTable('Categories by change', columns('category'), diff.categories.map((r) => [labelOf(traces[0], r.name), ...figures(r)])),
    h('h3', {text: 'Kernels'}), table(shown),
    rest.length ? h('details', {}, h('summary', {text: plural(rest.length, 'more kernel')}), table(rest)) : null);
}

function ranksSection(ranks) {
  if (!ranks) return null;
  const columns = [{label: 'rank'}, ...['span ms', 'busy ms', 'compute ms', 'communication ms', 'waiting ms', 'arrived last'].map((label) => ({label, numeric: true}))];
  return section('ranks', 'Ranks',
    h('p', {class: 'headline', text: visible(ranks.headline)}),
    note(plural(ranks.collectives, 'collective') + ' matched over the ranks; mean skew ' + time(ranks.mean_skew_ns) + '. ' +
         'A rank that arrives late waits little: the rank with the least time in collectives is the slow one.' +
         (ranks.unmatched_names > 0 ? ' ' + plural(ranks.unmatched_names, 'communication kernel') + ' could not be matched.' : '')),
    plainTable('Ranks', columns, ranks.ranks.map((r) => [visible(r.label), milliseconds(r.span_ns), milliseconds(r.busy_ns), milliseconds(r.compute_ns),
      milliseconds(r.communication_ns), milliseconds(r.waiting_ns), count(r.arrived_last)])));
}
