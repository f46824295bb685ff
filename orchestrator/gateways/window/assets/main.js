// Signs in with the code of the address, and says as whom.
const said = document.getElementById("window");

async function api(method, params = {}) {
  const headers = { "Content-Type": "application/json", "Dendro-Key": localStorage.getItem("dendro.key") ?? "" };
  const answer = await fetch(`/api/${method}`, { method: "POST", headers, body: JSON.stringify(params) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error.message);
  return told;
}

async function start() {
  const code = new URLSearchParams(location.hash.slice(1)).get("c");
  if (code) {
    history.replaceState(null, "", location.pathname + location.search);
    const key = Array.from(crypto.getRandomValues(new Uint8Array(32)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    localStorage.setItem("dendro.key", key);
    await api("login", { code, key });
  }
  const state = await api("window/state");
  said.textContent = `${state.who}, ${state.scope}`;
}

start().catch((error) => { said.textContent = error.message; });
