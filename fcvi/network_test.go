package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/fc/fabricd"
)

// An inProcess is the network of a simulated Net that runs in real time. Each NIC becomes an N_Port
// of sw.
type inProcess struct {
	n  *fabric.Net
	sw *fabric.Switch
}

func (x *inProcess) attach(_ func() fc.Time, dev func(out fc.Sender) fabricd.LocalDevice) (func(), error) {
	var end *fabric.End
	done := make(chan error, 1)
	x.n.Do(func() {
		var w *netDevice
		end = x.n.Attach(x.sw, func(out fc.Sender) fabric.Device {
			w = &netDevice{dev: dev(out)}
			return w
		})
		x.n.BringUp(end)
		done <- nil
	})
	err := <-done
	return func() {
		gone := make(chan struct{})
		x.n.Do(func() {
			x.n.Remove(end)
			close(gone)
		})
		<-gone
	}, err
}

// A netDevice holds a device's lock during calls of a Net.
type netDevice struct{ dev fabricd.LocalDevice }

func (w *netDevice) LinkUp(_ fc.Time, i fc.LinkInfo) {
	w.dev.Enter()
	w.dev.LinkUp(w.dev.(*station).now(), i)
	w.dev.Leave()
}

func (w *netDevice) LinkDown(fc.Time) {
	w.dev.Enter()
	w.dev.LinkDown(w.dev.(*station).now())
	w.dev.Leave()
}

func (w *netDevice) Receive(_ fc.Time, f *fc.Frame) {
	w.dev.Enter()
	w.dev.Receive(w.dev.(*station).now(), f)
	w.dev.Leave()
}

func (w *netDevice) LinkRoom(fc.Time) {
	w.dev.Enter()
	w.dev.(*station).LinkRoom(w.dev.(*station).now())
	w.dev.Leave()
}
