package shell

import (
	"fmt"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A Bar shows how far long work has come: bytes, rate, time left. Off a
// terminal it shows nothing. The zero of its pointer is usable.
type Bar struct {
	p   *mpb.Progress
	b   *mpb.Bar
	was time.Time
}

// Progress starts a bar for total bytes, of which done are there already.
func (e *Env) Progress(name string, total, done int64) *Bar {
	if !e.IsTerminal() || total <= 0 {
		return nil
	}
	p := mpb.New(mpb.WithOutput(e.Stderr), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))
	b := p.AddBar(total,
		mpb.PrependDecorators(decor.Name(name+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f "), decor.AverageETA(decor.ET_STYLE_GO)))
	if done > 0 {
		b.SetRefill(done)
		b.SetCurrent(done)
		b.DecoratorAverageAdjust(time.Now())
	}
	return &Bar{p: p, b: b, was: time.Now()}
}

// Add moves the bar by n bytes.
func (b *Bar) Add(n int) {
	if b != nil {
		b.b.IncrBy(n)
	}
}

// Done ends the bar, finished or not, and leaves it on the screen.
func (b *Bar) Done() {
	if b == nil {
		return
	}
	b.b.Abort(false)
	b.p.Wait()
}

// Size prints a count of bytes for people.
func Size(n float64) string {
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1000 {
			if u == "B" || n >= 100 {
				return fmt.Sprintf("%.0f %s", n, u)
			}
			return fmt.Sprintf("%.1f %s", n, u)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1f TiB", n)
}

// Rate prints bytes per second for people.
func Rate(n float64) string { return Size(n) + "/s" }
