// Conversations that survive the tab: in the database of this browser, and never the key.

const [DATABASE, STORE] = ["pasta-lm", "conversations"];

function opened() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open(DATABASE, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

// Do something in the store; a browser that keeps nothing answers null.
async function inStore(mode, act) {
  try {
    const database = await opened();
    return await new Promise((resolve, reject) => {
      const asked = act(database.transaction(STORE, mode).objectStore(STORE));
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    }).finally(() => database.close());
  } catch {
    return null;
  }
}

// Keep a conversation {id, title, changed_ms, text}; its text is that of keeping.js.
export function shelve(conversation) {
  return inStore("readwrite", (store) => store.put(conversation));
}

export function discard(id) {
  return inStore("readwrite", (store) => (id === null ? store.clear() : store.delete(id)));
}

// All conversations, the newest first.
export async function shelved() {
  const all = (await inStore("readonly", (store) => store.getAll())) ?? [];
  return all.sort((one, other) => other.changed_ms - one.changed_ms);
}
