/** The events of GET /live, over fetch: an EventSource could send no API key. */

const SILENCE = 5000; // Milliseconds without a byte after which the connection counts as lost.
const FIRST_RETRY = 500;
const LAST_RETRY = 8000;

/**
 * Opens the stream, and opens it again whenever it ends, until the returned function is called.
 *
 * hear(event): `event` is {state: "connecting" | "open" | "lost" | "refused", reason, retryAt} or
 * {snapshot}.
 */
export function listen(api, hear) {
  let stopped = false;
  let timer = 0;
  let retry = FIRST_RETRY;
  let abort = new AbortController();

  async function connect() {
    abort = new AbortController();
    hear({ state: "connecting" });
    try {
      await read(api, abort, (snapshot) => {
        retry = FIRST_RETRY;
        hear({ snapshot });
      }, () => hear({ state: "open" }));
      again("the gateway ended the stream");
    } catch (error) {
      if (!stopped) again(error.reason ?? "no answer", error.refused, error.wait);
    }
  }

  function again(reason, refused = false, wait = 0) {
    if (stopped) return;
    const pause = Math.max(wait, retry) * (0.8 + 0.4 * Math.random());
    retry = Math.min(2 * retry, LAST_RETRY);
    hear({ state: refused ? "refused" : "lost", reason, retryAt: Date.now() + pause });
    timer = setTimeout(connect, pause);
  }

  connect();
  return () => {
    stopped = true;
    clearTimeout(timer);
    abort.abort();
  };
}

async function read(api, abort, hear, opened) {
  const silence = watchdog(() => abort.abort());
  try {
    const reply = await fetch("live", {
      headers: { accept: "text/event-stream", ...(await api.headers()) },
      cache: "no-store",
      signal: abort.signal,
    });
    if (!reply.ok) throw await refusal(reply);
    opened();
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      silence.reset();
      const events = (pending + value).split("\n\n");
      pending = events.pop();
      // Of several that came at once only the last says how things are.
      const latest = events.map(dataOf).findLast((data) => data !== "");
      if (latest !== undefined) hear(JSON.parse(latest));
    }
  } finally {
    silence.stop();
  }
}

/** The data of an event; empty for comments and other events. */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => !line.startsWith(":"));
  if (!lines.includes("event: snapshot")) return "";
  return lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
}

async function refusal(reply) {
  const error = new Error("refused");
  error.refused = true;
  error.wait = 1000 * Number(reply.headers.get("retry-after") ?? 2);
  try {
    error.reason = (await reply.json()).error.message;
  } catch {
    error.reason = `the gateway answered ${reply.status}`;
  }
  if (reply.status === 401 || reply.status === 403) error.reason = "an admin's API key is needed to watch";
  return error;
}

function watchdog(bark) {
  let timer = setTimeout(bark, SILENCE);
  return {
    reset() {
      clearTimeout(timer);
      timer = setTimeout(bark, SILENCE);
    },
    stop: () => clearTimeout(timer),
  };
}
