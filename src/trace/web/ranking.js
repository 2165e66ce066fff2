// The ranking: sortable by any column, filtered by text and category, with the launch of each kernel on demand.

const firstRows = 25;

const rankingColumns = [
  {label: 'total ms', text: (r) => milliseconds(r.total_ns), key: (r) => r.total_ns},
  {label: 'share', text: (r) => percent(r.share), key: (r) => r.share, bar: true},
  {label: 'calls', text: (r) => count(r.calls), key: (r) => r.calls},
  {label: 'mean us', text: (r) => microseconds(r.mean_ns), key: (r) => r.mean_ns},
  {label: 'min us', text: (r) => microseconds(r.min_ns), key: (r) => r.min_ns},
  {label: 'p95 us', text: (r) => microseconds(r.p95_ns), key: (r) => r.p95_ns},
  {label: 'max us', text: (r) => microseconds(r.max_ns), key: (r) => r.max_ns},
];

class Ranking {
  constructor(trace) {
    this.trace = trace;
    this.column = 0;
    this.ascending = false;
    this.all = false;
    this.text = '';
    this.category = '';
    this.columns = [
      ...rankingColumns,
      {label: 'category', key: (r) => labelOf(trace, r.category), words: true},
      {label: 'kernel', key: (r) => readable(trace, r.name), words: true},
    ];
    this.smCount = trace.devices.length ? trace.devices[0].sm_count : 0;
    this.element = this.build();
    this.fill();
  }

  build() {
    this.heads = this.columns.map((c, i) => h('th', {scope: 'col', class: c.words ? '' : 'num'},
      h('button', {type: 'button', class: 'sort', click: () => this.sortBy(i)}, c.label, h('span', {class: 'arrow', 'aria-hidden': 'true'}))));
    this.body = h('tbody');
    this.status = h('p', {class: 'note', role: 'status'});
    this.more = h('button', {type: 'button', class: 'more', click: () => { this.all = !this.all; this.fill(); }});
    const search = h('input', {
      type: 'search', placeholder: 'part of a name', 'aria-label': 'Show kernels whose name contains',
      input: () => { this.text = search.value.toLowerCase(); this.fill(); },
    });
    this.select = h('select', {'aria-label': 'Show one category', change: () => this.showCategory(this.select.value)},
                    h('option', {value: '', text: 'all categories'}),
                    this.trace.categories.map((c) => h('option', {value: c.id, text: visible(c.label)})));
    const table = h('table', {class: 'cards ranking', 'aria-label': 'Kernels by time'}, h('thead', {}, h('tr', {}, this.heads)), this.body);
    return section('ranking', 'Ranking',
      note('Share is of the summed time of all ' + deviceWord(this.trace) + ' work. Each heading sorts; a row’s arrow shows its launch.'),
      h('div', {class: 'tools'}, search, this.select), table, this.more, this.status);
  }

  showCategory(id) {
    this.category = id;
    this.select.value = id;
    this.fill();
  }

  sortBy(column) {
    this.ascending = this.column === column ? !this.ascending : Boolean(this.columns[column].words);
    this.column = column;
    this.fill();
  }

  rows() {
    const key = this.columns[this.column].key, sign = this.ascending ? 1 : -1;
    const matches = (r) => (!this.category || r.category === this.category) &&
      (!this.text || r.name.toLowerCase().includes(this.text) || readable(this.trace, r.name).toLowerCase().includes(this.text));
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return this.trace.ranking.map((row, at) => ({row, at})).filter(({row}) => matches(row))
      .sort((a, b) => sign * compare(key(a.row), key(b.row)) || a.at - b.at);
  }

  fill() {
    this.heads.forEach((head, i) => {
      head.setAttribute('aria-sort', i !== this.column ? 'none' : this.ascending ? 'ascending' : 'descending');
      head.querySelector('.arrow').textContent = i !== this.column ? '' : this.ascending ? ' ▲' : ' ▼';
    });
    const rows = this.rows(), shown = this.all ? rows : rows.slice(0, firstRows);
    this.body.replaceChildren(...shown.map(({row, at}) => this.row(row, at)));
    this.more.hidden = rows.length <= firstRows;
    this.more.textContent = this.all ? 'Show the first ' + firstRows : 'Show all ' + count(rows.length) + ' kernels';
    this.status.textContent = this.statusText(rows, shown);
  }

  statusText(rows, shown) {
    const total = (list) => list.reduce((sum, {row}) => sum + row.share, 0);
    const rest = this.trace.page.ranking_rest;
    let text = plural(shown.length, 'row') + ' of ' + count(rows.length) + ' shown, ' + percent(total(shown)) + ' of the time';
    if (rows.length > shown.length) text += '; the rest has ' + percent(total(rows.slice(shown.length)));
    if (rest.names > 0)
      text += '. ' + plural(rest.names, 'more kernel name') + ' (' + percent(rest.share) + ', ' + milliseconds(rest.total_ns) +
              ' ms) are left out of this file to bound its size';
    return text + '.';
  }

  row(row, at) {
    const cells = rankingColumns.map((c) => {
      const cell = h('td', {class: 'num', 'data-label': c.label, text: c.text(row)});
      if (c.bar) {
        cell.classList.add('bar');
        cell.style.setProperty('--share', Math.min(100, row.share * 100).toFixed(2) + '%');
        cell.style.setProperty('--colour', colourOf(this.trace, row.category));
      }
      return cell;
    });
    cells.push(h('td', {'data-label': 'category', class: 'category'}, swatch(colourOf(this.trace, row.category)), labelOf(this.trace, row.category)));
    const id = 'row-' + at;
    const toggle = h('button', {
      type: 'button', class: 'toggle', 'aria-expanded': 'false', 'aria-controls': id,
      'aria-label': 'Details of ' + cut(readable(this.trace, row.name), 80), text: '▸',
      click: () => {
        const open = toggle.getAttribute('aria-expanded') !== 'true';
        toggle.setAttribute('aria-expanded', String(open));
        toggle.textContent = open ? '▾' : '▸';
        if (open) line.after(this.details(row, id));
        else line.nextElementSibling.remove();
      },
    });
    cells.push(h('td', {class: 'name'}, h('div', {class: 'named'}, toggle, kernelName(this.trace, row.name))));
    const line = h('tr', {}, cells);
    return line;
  }

  details(row, id) {
    const facts = [];
    const shown = readable(this.trace, row.name);
    if (shown !== visible(row.name)) facts.push(['name in the file', h('code', {text: visible(row.name) || '(empty)'})]);
    const launch = launchText(row.shape || {}, row.kind === 'kernel' ? this.smCount : 0);
    facts.push([row.kind === 'kernel' ? 'launch' : 'copy', launch || 'not recorded in this trace']);
    if (row.shapes > 1) facts.push(['launches differ', row.shapes + ' different shapes; shown is the one with the most time']);
    facts.push(['median', time(row.p50_ns)], ['shortest to longest', time(row.min_ns) + ' to ' + time(row.max_ns)]);
    if (row.kind === 'kernel') facts.push(['of kernel time', percent(row.kernel_share)]);
    if (row.share < 1) facts.push(['if it took no time', 'all ' + deviceWord(this.trace) + ' work would take ' + time(this.trace.total_ns - row.total_ns) +
                                   ' instead of ' + time(this.trace.total_ns) + ' (sum)']);
    return h('tr', {class: 'details', id}, h('td', {colspan: this.columns.length},
      h('dl', {}, facts.map(([name, value]) => [h('dt', {text: name}), h('dd', {}, value)]))));
  }
}
