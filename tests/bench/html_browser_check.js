// Runs inside a copy of the HTML report of a load test (html_browser.sh appends it) and uses the page as a person would.
(() => {
'use strict';
const failures = [];
const check = (truth, text) => { if (!truth) failures.push(text); };
const all = (selector) => [...document.querySelectorAll(selector)];
const press = (element, key) => element.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
const data = JSON.parse(document.getElementById('data').textContent);
check(document.documentElement.dataset.ready === 'yes', 'the page did not finish');
check(document.documentElement.scrollWidth <= innerWidth, 'the page scrolls sideways: ' + document.documentElement.scrollWidth + ' of ' + innerWidth);
check(all('main script, main img, main iframe, main link').length === 0, 'a text became markup');
check(!/\[object |undefined|NaN/.test(document.querySelector('main').textContent), 'a value is not readable');
check(all('table.cards').every((t) => t.querySelectorAll('tbody tr').length === data.levels.length), 'a level is missing in a table');
check(all('nav a').every((a) => document.getElementById(a.getAttribute('href').slice(1))), 'a link leads nowhere');
const ids = all('[id]').map((e) => e.id);
check(new Set(ids).size === ids.length, 'an id occurs twice');
const plots = all('.plot');
check(plots.length >= (data.levels.length > 1 ? 6 : 3), 'a plot is missing: ' + plots.length);
for (const plot of plots) {
  const canvas = plot.querySelector('canvas'), reading = plot.nextElementSibling;
  check(canvas && canvas.width > 100 && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v > 0), 'an empty plot');
  press(plot, 'Home');
  const first = reading.textContent;
  press(plot, 'End');
  check(reading.textContent !== first && reading.textContent.length > 5, 'keys do not move along ' + plot.getAttribute('aria-label'));
  press(plot, 'ArrowLeft');
}
const picker = document.querySelector('#time select');
picker.value = '0';
picker.dispatchEvent(new Event('change'));
check(document.querySelector('#time canvas'), 'the timeline of another level is not drawn');
for (const failure of failures) console.error(failure);
document.documentElement.dataset.checked = failures.length ? 'no' : 'yes';
})();
