// Shared by all parts of the report: building elements, numbers as text, names, colours.
// Texts of the trace reach the page through text nodes only, never as markup.

/** An element. Attributes with a function as value are event listeners; children are elements or texts. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (key === 'text') element.textContent = value;
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false)
      element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const invisible = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Text of the trace with control, zero-width and direction characters made visible. */
function visible(text) {
  return String(text).replace(invisible, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

const number = new Intl.NumberFormat('en-US', {maximumFractionDigits: 3});

function count(n) {
  return number.format(n);
}

/** "104.1 ms", "726 us": four digits at most, as in the other reports. */
function time(ns) {
  const sign = ns < 0 ? '-' : '', v = Math.abs(ns);
  const digits = (x) => (x < 9.995 ? 2 : x < 999.5 ? 1 : 0);
  if (v < 1000) return sign + v.toFixed(0) + ' ns';
  for (const [unit, size, end] of [['us', 1e3, 999950], ['ms', 1e6, 999950000], ['s', 1e9, Infinity]])
    if (v < end) return sign + (v / size).toFixed(digits(v / size)) + ' ' + unit;
  return '';
}

function milliseconds(ns) {
  return (ns / 1e6).toFixed(3);
}

function microseconds(ns) {
  const us = ns / 1e3;
  return us.toFixed(us < 99.995 ? 2 : us < 99999.5 ? 1 : 0);
}

function percent(share) {
  const p = share * 100;
  return p > 0 && p < 0.05 ? '<0.1 %' : p.toFixed(1) + ' %';
}

function bytes(n) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
    if (n >= size) return number.format(+(n / size).toFixed(1)) + ' ' + unit;
  return n + ' B';
}

function speedup(factor) {
  return factor >= 100 ? 'over 100x' : factor.toFixed(2) + 'x';
}

/** What the work of a trace ran on: GPU, CPU or TPU. */
function deviceWord(trace) {
  return trace.device_word || 'GPU';
}

function plural(n, one, many) {
  return count(n) + ' ' + (n === 1 ? one : many || one + 's');
}

/** A kernel name for people; `trace` holds the readable forms. */
function readable(trace, name) {
  const names = trace.page.names;
  return visible(Object.hasOwn(names, name) ? names[name] : name === '' ? '(empty name)' : name);
}

/** The same without template arguments, for narrow places. */
function brief(trace, name) {
  const whole = readable(trace, name);
  let out = '', depth = 0;
  for (const c of whole) {
    if (c === '<') ++depth;
    if (depth === 0) out += c;
    if (c === '>' && depth > 0) --depth;
  }
  out = out.replace(/[ :]+$/, '');
  return out === '' || whole.startsWith('<') ? whole : out;
}

/** A text cut in the middle, since names often differ at their ends. */
function cut(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) * 0.6);
  return text.slice(0, head) + '…' + text.slice(text.length - (length - 1 - head));
}

function launchText(shape, smCount) {
  const parts = [];
  if (shape.grid) {
    const blocks = shape.grid.reduce((a, b) => a * b, 1);
    parts.push('grid ' + shape.grid.join('×') + ' (' + plural(blocks, 'block') +
               (smCount > 0 ? ' on ' + smCount + ' SMs' : '') + ')');
    parts.push('block ' + shape.block.join('×') + ' (' + plural(shape.block.reduce((a, b) => a * b, 1), 'thread') + ')');
  }
  if (shape.registers) parts.push(shape.registers + ' registers a thread');
  if (shape.shared_bytes) parts.push(bytes(shape.shared_bytes) + ' shared memory a block');
  if (shape.bytes) parts.push(bytes(shape.bytes) + ' moved');
  return parts.join(', ');
}

// ---- Colours -------------------------------------------------------------------------------------------------------

const categoryColours = {
  attention: '#3f7fe0', moe_gemm: '#e0602f', dense_gemm: '#e5a823', moe_routing: '#a8653a', indexer: '#8059d0',
  norm: '#23a094', rope: '#66c2b5', quant: '#8fbc3b', activation: '#4c9f45', kv_cache: '#2f95bd',
  elementwise: '#a9ad3a', reduce: '#b693dc', sampling: '#dc72a8', communication: '#cf3a56', memcpy: '#75828f',
  other: '#a3a8ad',
};
const moreColours = ['#1b9e77', '#d2559e', '#7570b3', '#b58a2a', '#5a8f29', '#4aa0d8'];

function colourOf(trace, category) {
  if (Object.hasOwn(categoryColours, category)) return categoryColours[category];
  const own = trace.categories.map((c) => c.id).filter((id) => !Object.hasOwn(categoryColours, id));
  return moreColours[Math.max(0, own.indexOf(category)) % moreColours.length];
}

function labelOf(trace, category) {
  const found = trace.categories.find((c) => c.id === category);
  return visible(found ? found.label : category);
}

/** Black or white, whichever can be read on `colour`. */
function inkOn(colour) {
  const part = (at) => {
    const v = parseInt(colour.slice(at, at + 2), 16) / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) > 0.19 ? '#000000' : '#ffffff';
}

const darkScheme = matchMedia('(prefers-color-scheme: dark)');
let printing = false;

/** Colours of the canvases; paper is always light. */
function scheme() {
  return darkScheme.matches && !printing
    ? {ink: '#e6e8ea', soft: '#9aa3ab', line: '#3a424a', back: '#171b1f', row: '#20262c', mark: '#ffffff'}
    : {ink: '#1a1d20', soft: '#5c646c', line: '#d4d9de', back: '#ffffff', row: '#f2f4f6', mark: '#000000'};
}

function swatch(colour) {
  const box = h('span', {class: 'swatch', 'aria-hidden': 'true'});
  box.style.backgroundColor = colour;
  return box;
}

/** A titled part of the page. */
function section(id, title, ...children) {
  return h('section', {id, 'aria-labelledby': id + '-title'}, h('h2', {id: id + '-title', text: title}), ...children);
}

function note(text) {
  return h('p', {class: 'note', text});
}

function plainTable(label, columns, rows) {
  const cells = (row) => row.map((cell, i) => h('td', {class: columns[i].numeric ? 'num' : '', 'data-label': columns[i].label}, cell));
  return h('table', {class: 'cards', 'aria-label': label},
           h('thead', {}, h('tr', {}, columns.map((c) => h('th', {scope: 'col', class: c.numeric ? 'num' : '', text: c.label})))),
           h('tbody', {}, rows.map((row) => h('tr', {}, cells(row)))));
}

/** A kernel name that wraps; longer ones open on demand and print whole. */
function kernelName(trace, name, length = 150) {
  const whole = readable(trace, name);
  if (whole.length <= length) return h('code', {class: 'kernel', text: whole});
  const shown = h('span', {class: 'cut', text: cut(whole, length)}), full = h('span', {class: 'whole', text: whole});
  const button = h('button', {
    type: 'button', class: 'inline', 'aria-expanded': 'false', text: 'all ' + count(whole.length) + ' characters',
    click: () => {
      const open = box.classList.toggle('open');
      button.setAttribute('aria-expanded', String(open));
      button.textContent = open ? 'shorten' : 'all ' + count(whole.length) + ' characters';
    },
  });
  const box = h('code', {class: 'kernel long'}, shown, full, ' ', button);
  return box;
}
