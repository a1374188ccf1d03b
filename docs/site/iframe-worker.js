/* Pages that are opened from a folder may start no worker: the search then works in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      const loaded = new Promise((done) => script.addEventListener("load", done));
      this.postMessage = (data) =>
        loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
      inside.document.documentElement.append(script);
    }
  };
}
