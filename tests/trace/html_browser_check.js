// Runs inside a copy of the HTML report (html_browser.sh appends it) and uses the page as a person would: sorts, opens,
// filters, moves through the timeline by keys. What is wrong goes to console.error, which fails the script.
(() => {
'use strict';
const failures = [];
const check = (truth, text) => { if (!truth) failures.push(text); };
const all = (selector) => [...document.querySelectorAll(selector)];
const press = (element, key) => element.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
const data = JSON.parse(document.getElementById('data').textContent);
const trace = data.traces[0];

function checkPage() {
  check(document.documentElement.dataset.ready === 'yes', 'the page did not finish');
  check(document.querySelector('.headline').textContent.length > 10, 'no headline');
  check(document.documentElement.scrollWidth <= innerWidth, 'the page scrolls sideways: ' + document.documentElement.scrollWidth + ' of ' + innerWidth);
  check(all('main script, main img, main iframe, main svg, main style, main link, main object').length === 0, 'a text of the trace became markup');
  check(all('*').every((e) => e.getAttributeNames().every((name) => !name.startsWith('on'))), 'an element has an event attribute');
  check(typeof window.pwned === 'undefined', 'a text of the trace was executed');
  check(all('button, .stage canvas, [role]').every((e) => e.textContent.trim() || e.getAttribute('aria-label') || e.getAttribute('role') === 'status' || e.getAttribute('role') === 'alert'),
        'a control has no name');
  check(!trace.import.partial || document.querySelector('.partial').textContent.includes('PARTIAL'), 'a damaged file is not announced');
  check(!/\[object |undefined|NaN/.test(document.querySelector('main').textContent.replace(trace.headline, '')), 'a value is not readable');
  const ids = all('[id]').map((e) => e.id);
  check(new Set(ids).size === ids.length, 'an id occurs twice');
  check(all('nav a').every((a) => document.getElementById(a.getAttribute('href').slice(1))), 'a link leads nowhere');
}

const rows = () => all('.ranking tbody tr:not(.details)');
const column = (label) => rows().map((r) => Number(r.querySelector('[data-label="' + label + '"]').textContent.replace(/,/g, '')));

function checkRanking() {
  const more = document.querySelector('.more');
  check(rows().length === Math.min(25, trace.ranking.length), 'wrong number of rows: ' + rows().length);
  if (!more.hidden) more.click();
  check(rows().length === trace.ranking.length, 'not every row can be shown');
  check(column('total ms').every((v, i) => Math.abs(v - trace.ranking[i].total_ns / 1e6) < 0.0006), 'totals differ from the data');
  check(column('calls').every((v, i) => v === trace.ranking[i].calls), 'calls differ from the data');
  for (const row of trace.ranking.filter((r) => /^[\x20-\x7e]{1,150}$/.test(r.name) && !Object.hasOwn(trace.page.names, r.name)))
    check(all('.ranking .kernel').some((k) => k.textContent === row.name), 'a name is not shown as text: ' + row.name);
  const heads = all('.ranking thead th'), calls = heads[2];
  calls.querySelector('button').click();
  check(calls.getAttribute('aria-sort') === 'descending', 'the sorted column is not marked');
  check(column('calls').every((v, i, list) => i === 0 || list[i - 1] >= v), 'not sorted by calls');
  calls.querySelector('button').click();
  check(column('calls').every((v, i, list) => i === 0 || list[i - 1] <= v), 'not sorted upwards');
  const toggle = document.querySelector('.toggle');
  toggle.click();
  check(toggle.getAttribute('aria-expanded') === 'true' && document.querySelector('tr.details dl'), 'a row does not open');
  toggle.click();
  check(!document.querySelector('tr.details'), 'a row does not close');
  const select = document.querySelector('#ranking select'), category = trace.categories[trace.categories.length - 1].id;
  select.value = category;
  select.dispatchEvent(new Event('change'));
  check(rows().length === trace.ranking.filter((r) => r.category === category).length, 'the filter by category is wrong');
  select.value = '';
  select.dispatchEvent(new Event('change'));
  heads[0].querySelector('button').click();
  if (!more.hidden) more.click();
}

function checkTimeline() {
  const canvas = document.querySelector('#timeline canvas'), detail = document.querySelector('#timeline .detail');
  const range = document.querySelector('#timeline .stage + .note'), whole = range.textContent, before = detail.textContent;
  canvas.focus();
  check(document.activeElement === canvas, 'the timeline cannot be focused');
  press(canvas, 'Home');
  const first = detail.textContent;
  check(first !== before, 'focus tells no kernel');
  if (trace.page.timelines[0].stream.filter((s) => s === trace.page.timelines[0].stream[0]).length > 1) {
    press(canvas, 'ArrowRight');
    check(detail.textContent !== first, 'the next kernel is not told');
  }
  if (trace.page.timelines[0].span_ns > 1000) {
    press(canvas, '+');
    check(range.textContent !== whole, 'plus does not zoom');
    press(canvas, '0');
    check(range.textContent === whole, 'zero does not show everything');
  }
  canvas.scrollIntoView();
  const box = canvas.getBoundingClientRect(), tip = document.querySelector('.tip');
  for (let x = 1; x < box.width && tip.hidden; ++x)
    canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + x, clientY: box.top + 50, pointerId: 1, bubbles: true}));
  check(!tip.hidden && tip.textContent.length > 5, 'pointing tells no kernel');
  canvas.dispatchEvent(new PointerEvent('pointerleave', {pointerId: 1}));
  check(tip.hidden, 'the tip stays');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length && colours.size < 6; i += 4) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  check(colours.size >= 4, 'the timeline is empty');
  canvas.blur();
  scrollTo(0, 0);
}

try {
  checkPage();
  if (trace.ranking.length) {
    checkRanking();
    checkTimeline();
  }
  check(!document.querySelector('#steps .plot') || document.querySelector('#steps canvas'), 'the steps are not plotted');
} catch (error) {
  failures.push(String(error && error.stack || error));
}
for (const failure of failures) console.error('CHECK: ' + failure);
document.documentElement.dataset.checked = failures.length ? 'failed' : 'yes';
})();
