// The two views of the page: chat and live.
import { startChat } from './chat.js';
import { showLive, startLive } from './live.js';

const views = ['chat', 'live'];

function show(view) {
  for (const name of views) {
    document.getElementById(name).hidden = name !== view;
    document.querySelector(`[data-view="${name}"]`).setAttribute('aria-pressed', String(name === view));
  }
  showLive(view === 'live');
}

/// "#/live" and not "#live": the browser would scroll to the element of that id.
const wanted = () => views.find((name) => location.hash === `#/${name}`) ?? views[0];

for (const name of views) document.querySelector(`[data-view="${name}"]`).addEventListener('click', () => { location.hash = `/${name}`; });
window.addEventListener('hashchange', () => show(wanted()));
show(wanted());
startLive();
startChat();
