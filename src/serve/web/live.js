// The live view: /metrics every second, as tiles and lines; the ranking of the last profile.
import { errorText, headers, histogramQuantile, parseMetrics, total } from './api.js';
import { apiKey } from './chat.js';

const at = (id) => document.getElementById(id);
const keep = 300;  // readings, one a second
let timer = null;
let before = null;  // {time, metrics} of the last reading
const history = [];

const ms = (seconds) => Number.isFinite(seconds) ? `${(seconds * 1000).toPrecision(3)} ms` : '–';
const count = (n) => n.toLocaleString('en-US', { maximumFractionDigits: n < 100 ? 1 : 0 });

/// Numbers of one reading, from counters since the one before.
function reading(now, metrics) {
  const seconds = before ? (now - before.time) / 1000 : NaN;
  const rate = (name) => before ? Math.max(0, total(metrics, name) - total(before.metrics, name)) / seconds : 0;
  const quantile = (name, q) => histogramQuantile(before?.metrics, metrics, name, q);
  return {
    output: rate('vllm:generation_tokens_total'),
    prompt: rate('vllm:prompt_tokens_total'),
    steps: rate('fathom_engine_steps_total'),
    running: total(metrics, 'vllm:num_requests_running'),
    waiting: total(metrics, 'vllm:num_requests_waiting'),
    cache: total(metrics, 'vllm:kv_cache_usage_perc'),
    ttft: quantile('vllm:time_to_first_token_seconds', 0.5),
    itl: quantile('vllm:inter_token_latency_seconds', 0.5),
    slow: quantile('vllm:inter_token_latency_seconds', 0.99),
    hits: rate('vllm:prefix_cache_hits_total') / Math.max(rate('vllm:prefix_cache_queries_total'), 1e-9),
    memory: total(metrics, 'process_resident_memory_bytes'),
  };
}

const tiles = [
  ['Output', (r) => `${count(r.output)} tokens/s`], ['Prompts', (r) => `${count(r.prompt)} tokens/s`],
  ['Running', (r) => count(r.running)], ['Waiting', (r) => count(r.waiting)],
  ['Cache in use', (r) => `${(r.cache * 100).toFixed(1)} %`], ['Prompt tokens found cached', (r) => `${(Math.min(r.hits, 1) * 100).toFixed(0)} %`],
  ['First token, median', (r) => ms(r.ttft)], ['Between tokens, median', (r) => ms(r.itl)], ['Between tokens, p99', (r) => ms(r.slow)],
  ['Steps', (r) => `${count(r.steps)} /s`], ['Memory', (r) => `${(r.memory / 2 ** 20).toFixed(0)} MiB`],
];

const charts = [
  { title: 'Tokens a second', first: ['output', (r) => r.output], second: ['prompt', (r) => r.prompt], text: count },
  { title: 'Requests', first: ['running', (r) => r.running], second: ['waiting', (r) => r.waiting], text: count },
  { title: 'Between tokens', first: ['median', (r) => r.itl], second: ['p99', (r) => r.slow], text: ms },
  { title: 'First token', first: ['first token', (r) => r.ttft], text: ms },
];

function drawTiles(r) {
  const list = at('tiles');
  if (list.children.length === 0) {
    for (const [name] of tiles) {
      const box = document.createElement('div');
      box.append(document.createElement('dt'), document.createElement('dd'));
      box.firstChild.textContent = name;
      list.append(box);
    }
  }
  tiles.forEach(([, text], i) => { list.children[i].lastChild.textContent = text(r); });
}

/// "M..L.." through the finite values, oldest left, newest at the right edge.
function path(values, most) {
  let out = '';
  let broken = true;
  values.forEach((v, i) => {
    if (!Number.isFinite(v)) {
      broken = true;
      return;
    }
    const x = keep - values.length + i;
    const y = 100 - v / most * 95;
    out += `${broken ? 'M' : 'L'}${x} ${y.toFixed(1)}`;
    if (broken) out += 'h0.5';
    broken = false;
  });
  return out;
}

function drawCharts() {
  const box = at('charts');
  if (box.children.length === 0) {
    for (const chart of charts) {
      const figure = document.createElement('figure');
      figure.innerHTML = `<figcaption><span></span><span></span></figcaption>
        <svg viewBox="0 0 ${keep} 100" preserveAspectRatio="none" role="img"><line class="axis" x1="0" y1="100" x2="${keep}" y2="100"/>
        <path class="first"/><path class="second"/></svg>`;
      figure.querySelector('figcaption').firstElementChild.textContent = chart.title;
      box.append(figure);
    }
  }
  charts.forEach((chart, i) => {
    const lines = [chart.first, chart.second].filter(Boolean);
    const values = lines.map(([, value]) => history.map(value));
    const most = Math.max(1e-9, ...values.flat().filter(Number.isFinite));
    const svg = box.children[i].querySelector('svg');
    svg.querySelector('.first').setAttribute('d', path(values[0], most));
    svg.querySelector('.second').setAttribute('d', values[1] ? path(values[1], most) : '');
    const legend = lines.map(([name, value], k) => `${k ? '- - ' : '— '}${name} ${chart.text(value(history.at(-1)))}`).join('  ');
    box.children[i].querySelector('figcaption').lastElementChild.textContent = legend;
    svg.setAttribute('aria-label', `${chart.title}: ${legend}; at most ${chart.text(most)}`);
  });
}

function showFailure(text) {
  at('live-failure').textContent = text;
  at('live-failure').hidden = !text;
}

async function read() {
  try {
    const response = await fetch('/metrics', { headers: headers(apiKey()) });
    if (!response.ok) throw new Error(await errorText(response));
    const metrics = parseMetrics(await response.text());
    const now = performance.now();
    const r = reading(now, metrics);
    before = { time: now, metrics };
    history.push(r);
    if (history.length > keep) history.shift();
    showFailure('');
    drawTiles(r);
    drawCharts();
  } catch (error) {
    showFailure(`No metrics: ${error.message}`);
  }
}

function drawOps(profile) {
  const table = document.createElement('table');
  table.innerHTML = '<thead><tr><th>Operation</th><th class="num">Share</th><th class="wide"></th><th class="num">Calls</th><th class="num">Time</th><th class="num">GB/s</th></tr></thead><tbody></tbody>';
  for (const op of profile.ops) {
    const row = table.tBodies[0].insertRow();
    const cell = (text, className) => {
      const c = row.insertCell();
      c.textContent = text;
      c.className = className;
      return c;
    };
    cell(op.name, '');
    cell(`${(op.share * 100).toFixed(1)} %`, 'num');
    const bar = document.createElement('span');
    bar.className = 'bar';
    bar.style.width = `${Math.max(1, op.share * 100)}%`;
    cell('', '').append(bar);
    cell(count(op.calls), 'num');
    cell(`${(op.seconds * 1000).toPrecision(3)} ms`, 'num');
    cell(op.gigabytes_per_second ? op.gigabytes_per_second.toPrecision(3) : '–', 'num');
  }
  at('ops').replaceChildren(table);
  at('profile-note').textContent = `${profile.steps} steps, written to ${profile.file}`;
}

/// The ranking of the last profile; null when there is none.
async function lastProfile() {
  const response = await fetch('/profile', { headers: headers(apiKey()) }).catch(() => null);
  return response?.ok ? response.json() : null;
}

async function showLastProfile() {
  const last = await lastProfile();
  if (last) drawOps(last);
}

async function profile() {
  at('profile').disabled = true;
  const steps = 50;
  at('profile-note').textContent = `Waiting for ${steps} steps: they come while requests run.`;
  try {
    const old = await lastProfile();
    const response = await fetch('/start_profile', { method: 'POST', headers: headers(apiKey()), body: JSON.stringify({ num_steps: steps }) });
    if (!response.ok) throw new Error(await errorText(response));
    for (let i = 0; i < 600; ++i) {
      await new Promise((resolve) => { setTimeout(resolve, 500); });
      const next = await lastProfile();
      if (next && next.file !== old?.file) {
        drawOps(next);
        return;
      }
    }
    at('profile-note').textContent = 'No steps ran for five minutes. /stop_profile ends the recording.';
  } catch (error) {
    at('profile-note').textContent = error.message;
  } finally {
    at('profile').disabled = false;
  }
}

export function showLive(shown) {
  clearInterval(timer);
  timer = null;
  if (!shown) return;
  read();
  timer = setInterval(read, 1000);
  showLastProfile();
}

export function startLive() {
  at('profile').addEventListener('click', profile);
}
