// Search of a site that is opened from disk: browsers allow no worker there, so its script runs in a hidden frame that takes and
// sends messages like one. The theme's offline plugin asks for this name and looks for a file so called.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const script = new URL(url, document.baseURI).href;
    const frame = document.createElement("iframe");
    frame.hidden = true;
    this.inside = new Promise((ready) => {
      frame.addEventListener("load", () => {
        const { contentWindow: worker, contentDocument: page } = frame;
        worker.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const element = page.createElement("script");
        element.src = script;
        element.onload = () => ready(worker);
        page.head.append(element);
      }, { once: true });
    });
    frame.srcdoc = "<!doctype html><title>search</title>";
    document.addEventListener("DOMContentLoaded", () => frame.isConnected || document.body.append(frame));
    document.body?.append(frame);
    this.frame = frame;
  }
  postMessage(data) {
    this.inside.then((worker) => worker.dispatchEvent(new MessageEvent("message", { data })));
  }
  terminate() {
    this.frame.remove();
  }
}
if (location.protocol === "file:") Object.assign(window, { IFrameWorker, Worker: IFrameWorker });
