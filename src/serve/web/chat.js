// The conversation: messages, streaming, thinking folded away, settings.
import { headers, streamChat } from './api.js';

const at = (id) => document.getElementById(id);
const settings = ['system', 'thinking', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed', 'key'];
const numbers = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed'];

let messages = [];
let running = null;  // AbortController of the answer that is being written

export function apiKey() {
  return at('key').value;
}

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function showFailure(text) {
  at('failure').textContent = text;
  at('failure').hidden = !text;
}

/// True when the reader is at the end of the conversation, and so wants to stay there.
function atEnd() {
  const box = at('messages');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function keepAtEnd(change) {
  const stay = atEnd();
  change();
  if (stay) at('messages').scrollTop = at('messages').scrollHeight;
}

function addArticle(role) {
  const article = element('article', role);
  article.append(element('h3', '', role === 'user' ? 'You' : 'Model'));
  keepAtEnd(() => at('messages').append(article));
  return article;
}

/// An answer while it is written.
class Answer {
  constructor() {
    this.message = { role: 'assistant', content: '', reasoning_content: '' };
    this.article = addArticle('assistant');
    this.calls = [];
    this.start = performance.now();
    this.pieces = 0;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const delta = choice.delta;
    const text = delta.content ?? '';
    const reasoning = delta.reasoning_content ?? '';
    for (const call of delta.tool_calls ?? []) {
      const known = this.calls[call.index] ??= { name: '', arguments: '' };
      known.name += call.function?.name ?? '';
      known.arguments += call.function?.arguments ?? '';
    }
    if (!text && !reasoning && !delta.tool_calls) return;
    this.first ??= performance.now();
    this.last = performance.now();
    ++this.pieces;
    this.message.content += text;
    this.message.reasoning_content += reasoning;
    keepAtEnd(() => this.draw(text, reasoning));
    this.showSpeed();
  }

  draw(text, reasoning) {
    if (reasoning) {
      if (!this.thought) {
        const details = element('details');
        details.append(element('summary', '', 'Thinking'), element('div'));
        this.article.append(details);
        this.thought = details.lastChild;
      }
      this.thought.append(reasoning);
    }
    if (text) {
      if (!this.said) this.article.append(this.said = element('div', 'said'));
      this.said.append(text);
    }
    if (this.calls.length > 0) {
      if (!this.shownCalls) this.article.append(this.shownCalls = element('pre'));
      this.shownCalls.textContent = this.calls.map((c) => `${c.name}(${c.arguments})`).join('\n');
    }
  }

  /// Tokens a second between the first and the last piece.
  rate() {
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    return this.last > this.first ? (tokens - 1) / (this.last - this.first) * 1000 : 0;
  }

  showSpeed() {
    at('speed').textContent = `${this.pieces} pieces, ${this.rate().toFixed(1)} tokens/s`;
  }

  end(stopped) {
    const parts = [];
    if (this.usage) parts.push(`${this.usage.completion_tokens} tokens`);
    if (this.first) parts.push(`first after ${((this.first - this.start) / 1000).toFixed(2)} s`, `${this.rate().toFixed(1)} tokens/s`);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens were cached`);
    parts.push(stopped ? 'stopped' : this.finish === 'length' ? 'cut off at the most tokens' : '');
    keepAtEnd(() => this.article.append(element('p', 'end', parts.filter(Boolean).join(', '))));
    at('speed').textContent = '';
  }
}

function requestBody() {
  const body = { messages: [] };
  if (at('system').value) body.messages.push({ role: 'system', content: at('system').value });
  for (const m of messages) {
    const copy = { role: m.role, content: m.content };
    if (m.reasoning_content) copy.reasoning_content = m.reasoning_content;
    body.messages.push(copy);
  }
  if (at('thinking').value) body.reasoning_effort = at('thinking').value;
  for (const name of numbers)
    if (at(name).value !== '') body[name] = Number(at(name).value);
  return body;
}

function showState() {
  const busy = running !== null;
  at('send').disabled = busy;
  at('stop').hidden = !busy;
  at('retry').disabled = busy || messages.length === 0;
  at('clear').disabled = busy || messages.length === 0;
}

async function answer() {
  showFailure('');
  running = new AbortController();
  showState();
  const entry = new Answer();
  let stopped = false;
  try {
    await streamChat(requestBody(), apiKey(), running.signal, (chunk) => entry.take(chunk));
  } catch (error) {
    stopped = error.name === 'AbortError';
    if (!stopped) showFailure(error.message);
  }
  running = null;
  if (entry.first) {
    messages.push(entry.message);
    entry.end(stopped);
  } else {
    entry.article.remove();
  }
  showState();
  at('text').focus();
}

function send() {
  const text = at('text').value;
  if (running || !text.trim()) return;
  messages.push({ role: 'user', content: text });
  addArticle('user').append(element('div', 'said', text));
  at('messages').scrollTop = at('messages').scrollHeight;
  at('text').value = '';
  answer();
}

/// Answers the last message of the user again.
function again() {
  while (messages.at(-1)?.role === 'assistant') {
    messages.pop();
    at('messages').lastChild.remove();
  }
  if (messages.length > 0) answer();
}

function clear() {
  messages = [];
  at('messages').replaceChildren();
  showFailure('');
  showState();
  at('text').focus();
}

/// Settings live for the tab: the key is never written to disk.
function keepSettings() {
  for (const name of settings) {
    const old = sessionStorage.getItem(`fathom.${name}`);
    if (old !== null) at(name).value = old;
    at(name).addEventListener('change', () => sessionStorage.setItem(`fathom.${name}`, at(name).value));
  }
}

export async function startChat() {
  keepSettings();
  at('ask').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  at('settings').addEventListener('submit', (event) => event.preventDefault());
  at('text').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  at('stop').addEventListener('click', () => running?.abort());
  at('retry').addEventListener('click', again);
  at('clear').addEventListener('click', clear);
  showState();
  const response = await fetch('/v1/models', { headers: headers(apiKey()) }).catch(() => null);
  if (response?.ok) at('model').textContent = (await response.json()).data[0]?.id ?? '';
}
