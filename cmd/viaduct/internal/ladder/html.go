package ladder

import (
	"bytes"
	"fmt"
	"html"
	"io"
)

// WriteHTML draws d as a single self-contained HTML file. The file has both scales and zoom, and
// shows the fields of the message under the pointer.
func (d *Diagram) WriteHTML(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, htmlHead, html.EscapeString(d.Title))
	b.WriteString(`<div id="events" class="pic">`)
	d.svg(&b, ByEvent)
	b.WriteString(`</div><div id="times" class="pic" hidden>`)
	d.svg(&b, ByTime)
	b.WriteString("</div>" + htmlTail)
	_, err := w.Write(b.Bytes())
	return err
}

const htmlHead = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%s</title>
<style>
body{margin:0;font:13px "DejaVu Sans",Verdana,sans-serif;background:#fff;color:#222}
header{position:sticky;top:0;z-index:2;background:#f4f4f4;border-bottom:1px solid #ccc;padding:6px 10px;display:flex;flex-wrap:wrap;gap:6px 10px;align-items:center}
button{font:inherit;padding:2px 10px}
.pic svg{display:block;margin:0 auto;width:100%%;height:auto;max-width:1040px}
.zoomed .pic svg{max-width:none}
#tip{position:fixed;z-index:3;display:none;white-space:pre-wrap;overflow-wrap:anywhere;background:#fffbe6;border:1px solid #b9a860;padding:6px 8px;font:11px "DejaVu Sans Mono",monospace;max-width:min(46em,90vw);max-height:80vh;overflow:hidden;pointer-events:none}
</style></head><body>
<header><button id="in">zoom in</button><button id="out">zoom out</button><button id="fit">fit</button>
<button id="scale">to the scale of time</button><span>point at a message for its fields</span></header>
<main>`

const htmlTail = `</main><div id="tip"></div>
<script>
(function () {
  var z = 1, main = document.querySelector("main"), tip = document.getElementById("tip");
  function zoom(f) {
    z = f ? Math.min(8, Math.max(0.25, z * f)) : 1;
    main.classList.toggle("zoomed", z !== 1);
    document.querySelectorAll(".pic svg").forEach(function (s) {
      s.style.width = z === 1 ? "" : z * Math.min(main.clientWidth, 1040) + "px";
    });
  }
  document.getElementById("in").onclick = function () { zoom(1.25); };
  document.getElementById("out").onclick = function () { zoom(0.8); };
  document.getElementById("fit").onclick = function () { zoom(0); };
  main.addEventListener("wheel", function (e) {
    if (!e.ctrlKey) return;
    e.preventDefault();
    zoom(e.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  document.getElementById("scale").onclick = function () {
    var a = document.getElementById("events"), b = document.getElementById("times");
    a.hidden = !a.hidden;
    b.hidden = !b.hidden;
    this.textContent = b.hidden ? "to the scale of time" : "by event";
  };
  document.querySelectorAll(".m").forEach(function (g) {
    var t = g.querySelector("title"), s = t.textContent;
    t.remove();
    g.addEventListener("mousemove", function (e) {
      tip.textContent = s;
      tip.style.display = "block";
      tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
    });
    g.addEventListener("mouseleave", function () { tip.style.display = "none"; });
  });
})();
</script></body></html>
`
