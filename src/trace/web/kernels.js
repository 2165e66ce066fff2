// Names, launches and categories of kernels as the parts of the report show them.

/** What the work of a trace ran on: GPU, CPU or TPU. */
function deviceWord(trace) {
  return trace.device_word || 'GPU';
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
