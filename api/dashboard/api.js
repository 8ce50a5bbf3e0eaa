// The API as this page uses it. The token is kept for this tab alone.

const KEPT = "onefold-token";

/** What the daemon answered instead of what was asked for. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (text) => sessionStorage.setItem(KEPT, text),
  forget: () => sessionStorage.removeItem(KEPT),
};

async function ask(method, path, body, signal) {
  const headers = { Authorization: `Bearer ${token.get() ?? ""}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers, signal, cache: "no-store", credentials: "omit",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text.trim();
  try { message = JSON.parse(text).message ?? message; } catch { /* The text is the message. */ }
  throw new Refused(answer.status, message || `the daemon answered ${answer.status}`);
}

/** Asks for a change. */
export const send = async (method, path, body) => (await ask(method, path, body)).json();

export const get = async (path) => (await ask("GET", path)).json();

/** Calls `look` with each event behind `since`, until the stream ends. */
export async function follow(since, signal, look) {
  const answer = await ask("GET", `/v1/events/stream?since=${since}`, undefined, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) look(JSON.parse(line.slice(5)));
    }
  }
}
