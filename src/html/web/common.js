// Shared by all reports: building elements, numbers as text, colours.
// Texts from outside reach the page through text nodes only, never as markup.

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

/** Text from outside with control, zero-width and direction characters made visible. */
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

function plural(n, one, many) {
  return count(n) + ' ' + (n === 1 ? one : many || one + 's');
}

/** A text cut in the middle, since names often differ at their ends. */
function cut(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) * 0.6);
  return text.slice(0, head) + '…' + text.slice(text.length - (length - 1 - head));
}

// ---- Colours -------------------------------------------------------------------------------------------------------

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

/** What the page shows on canvases: drawn anew whenever its size or the colours change. */
let drawings = [];

function redraw() {
  for (const drawing of drawings) drawing.draw();
}

let pending = 0;
addEventListener('resize', () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(redraw);
});
darkScheme.addEventListener('change', redraw);
for (const [event, value] of [['beforeprint', true], ['afterprint', false]])
  addEventListener(event, () => {
    printing = value;
    redraw();
  });
