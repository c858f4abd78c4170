/** What the page asks the server, the key that it sends along, and the errors that come back. */

const KEY = "penstock.key";

/** An answer of the server's that is an error. retryAfter: seconds, null where it says none. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, param, retryAfter });
  }

  /** From a response that is not 2xx. */
  static async of(response) {
    let body = null;
    try {
      body = await response.json();
    } catch {
      // A proxy's page, or nothing: the status has to do.
    }
    const error = body?.error;
    const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
    return new ApiError(
      typeof error?.message === "string" ? error.message : `the server answered ${response.status} ${response.statusText}`.trim(),
      {
        status: response.status,
        code: error?.code ?? null,
        param: error?.param ?? null,
        retryAfter: Number.isFinite(seconds) && seconds >= 0 ? Math.min(seconds, 3600) : null,
      },
    );
  }
}

function kept(storage) {
  try {
    return storage().getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** The API key: of this tab, or remembered on this device where that was asked for. */
export const apiKey = {
  memory: "",
  get() {
    return this.memory || kept(() => sessionStorage) || kept(() => localStorage);
  },
  get remembered() {
    return kept(() => localStorage) !== "";
  },
  set(key, remember) {
    this.memory = key;
    for (const [storage, wanted] of [[() => sessionStorage, !remember], [() => localStorage, remember]]) {
      try {
        if (key && wanted) storage().setItem(KEY, key);
        else storage().removeItem(KEY);
      } catch {
        // No storage: it is in memory, for as long as the page is open.
      }
    }
  },
};

/** The header that names who asks; none without a key. */
export function headers() {
  const key = apiKey.get();
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** The models that are served: [{id, max_model_len}]. Throws ApiError, and TypeError without a server. */
export async function models() {
  const response = await fetch("v1/models", { headers: headers(), cache: "no-store" });
  if (!response.ok) throw await ApiError.of(response);
  return (await response.json()).data;
}
