// Requests to the server that this page came from.

/// Headers with the key, if there is one.
export function headers(key) {
  const out = { 'content-type': 'application/json' };
  if (key) out.authorization = `Bearer ${key}`;
  return out;
}

/// The text of an answer that is an error.
export async function errorText(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}: ${text.slice(0, 300)}`;
  }
}

/// Sends a chat request and calls onChunk with each object of the stream. Throws Error with the server's words.
export async function streamChat(body, key, signal, onChunk) {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST', headers: headers(key), signal,
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  if (!response.ok) throw new Error(await errorText(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  let done = false;
  while (!done) {
    const piece = await reader.read();
    if (piece.done) break;
    pending += piece.value;
    const lines = pending.split('\n');
    pending = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice(5).trim();
      if (data === '[DONE]') {
        done = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      onChunk(chunk);
    }
  }
  if (!done) throw new Error('The connection ended before the answer did.');
}

/// The samples of /metrics: name -> list of {labels, value}.
export function parseMetrics(text) {
  const out = new Map();
  for (const line of text.split('\n')) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const label of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[label[1]] = label[2];
    if (!out.has(match[1])) out.set(match[1], []);
    out.get(match[1]).push({ labels, value: Number(match[3].replace('+Inf', 'Infinity')) });
  }
  return out;
}

/// Sum over the samples of a metric; 0 when there is none.
export function total(metrics, name) {
  return (metrics.get(name) ?? []).reduce((sum, sample) => sum + sample.value, 0);
}

/// Quantile q of what a histogram counted between two readings, in its unit; NaN when it counted nothing.
export function histogramQuantile(before, after, name, q) {
  const buckets = (after.get(`${name}_bucket`) ?? []).map((sample) => {
    const old = (before?.get(`${name}_bucket`) ?? []).find((s) => s.labels.le === sample.labels.le);
    return { le: sample.labels.le === '+Inf' ? Infinity : Number(sample.labels.le), count: sample.value - (old?.value ?? 0) };
  }).sort((a, b) => a.le - b.le);
  const all = buckets.at(-1)?.count ?? 0;
  if (!(all > 0)) return NaN;
  let low = 0;
  let below = 0;
  for (const bucket of buckets) {
    if (bucket.count >= q * all) {
      if (bucket.le === Infinity) return low;
      return low + (bucket.le - low) * (q * all - below) / Math.max(bucket.count - below, 1e-9);
    }
    low = bucket.le;
    below = bucket.count;
  }
  return low;
}
