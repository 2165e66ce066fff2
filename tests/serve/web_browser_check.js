// Runs in the web page (web_browser.py) and uses it as a person would. useThePage() gives what is wrong.
const at = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const failures = [];
const check = (truth, text) => { if (!truth) failures.push(text); };
const wait = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

async function until(what, condition) {
  for (let i = 0; i < 400; ++i) {
    if (condition()) return;
    await wait(50);
  }
  check(false, `waited in vain for: ${what}`);
}

const idle = () => !at('send').disabled;
function say(text) {
  at('text').value = text;
  at('text').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true }));
}
function set(id, value) {
  at(id).value = value;
  at(id).dispatchEvent(new Event('change'));
}

async function chat() {
  await until('the name of the model', () => at('model').textContent !== '');
  set('max_tokens', '24');
  set('temperature', '0');
  say('Tell me a story about a <b>fox</b>');
  check(!idle() && !at('stop').hidden, 'sending does not show that an answer is written');
  await until('an answer', idle);
  const articles = all('#messages article');
  check(articles.length === 2, `two messages expected, ${articles.length} shown`);
  check(articles[0].querySelector('b') === null, 'a message became markup');
  const first = articles[1]?.querySelector('.said')?.textContent ?? '';
  check(first.length > 10, 'no text in the answer');
  check(/24 tokens, first after [\d.]+ s, [\d.]+ tokens\/s/.test(articles[1]?.querySelector('.end')?.textContent), 'no numbers below the answer');
  at('retry').click();
  await until('the answer again', idle);
  check(all('#messages article').length === 2, 'again did not replace the answer');
  check(all('#messages article')[1]?.querySelector('.said')?.textContent === first, 'the greedy answer changed');
  set('thinking', 'high');
  say('And then?');
  await until('an answer with thinking', idle);
  const last = all('#messages article').at(-1);
  check(last.querySelector('details:not([open]) summary')?.textContent === 'Thinking', 'the thinking is not folded away');
  set('thinking', '');
  set('max_tokens', '2000');
  say('A long one');
  await until('the first words', () => all('#messages article').length === 6 && all('#messages article').at(-1).querySelector('.said'));
  at('stop').click();
  await until('the stop', idle);
  check(all('#messages article').at(-1).querySelector('.end')?.textContent.includes('stopped'), 'stop is not shown');
  set('temperature', '-1');
  say('This cannot be');
  await until('the refusal', idle);
  check(at('failure').textContent.includes('temperature'), 'an error of the server is not shown');
  set('temperature', '');
  at('clear').click();
  check(all('#messages article').length === 0 && at('failure').hidden, 'a new chat is not empty');
}

async function live() {
  location.hash = '/live';
  await until('tiles', () => all('#tiles dd').length > 8 && all('#charts svg').length === 4);
  check(at('chat').hidden && !at('live').hidden, 'the live view is not shown');
  at('profile').click();
  fetch('/v1/completions', { method: 'POST', body: JSON.stringify({ prompt: 'Once', max_tokens: 120, ignore_eos: true }) });
  await until('a ranking', () => all('#ops tbody tr').length > 5);
  check(at('profile-note').textContent.startsWith('50 steps'), `the note under the profile: ${at('profile-note').textContent}`);
  check(!/NaN|undefined|\[object/.test(at('live').textContent), 'a value is not readable');
  check(at('live-failure').hidden, at('live-failure').textContent);
}

function page() {
  check(document.documentElement.scrollWidth <= innerWidth, 'the page scrolls sideways');
  check(all('button, input, select, textarea').every((e) => e.textContent.trim() || e.labels?.length > 0), 'a control has no name');
}

async function useThePage() {
  await chat();
  await live();
  page();
  return failures;
}

/// For a picture: something to look at.
async function showSomething(view) {
  set('max_tokens', '80');
  set('thinking', view === 'chat' ? 'low' : '');
  await until('the page', idle);
  say('Tell me about the old miller and his three sons.');
  await until('an answer', idle);
  if (view === 'live') await wait(2500);
}
