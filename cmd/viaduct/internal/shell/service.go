package shell

import (
	"fmt"
	"net"
	"os"
	"time"

	"viaduct/cmd/viaduct/internal/systemd"
)

// Inherit takes over the sockets opened by a service manager for this process, and returns an error
// if the manager's variables are invalid.
func (e *Env) Inherit() (err error) {
	e.sockets, err = systemd.Inherited()
	return err
}

// Inherited returns the TCP listener opened by a service manager at an address, or nil if there is
// none. Each listener is returned once.
func (e *Env) Inherited(address string) net.Listener {
	if e.sockets == nil {
		return nil
	}
	return e.sockets.Listener(address)
}

// InheritedUDP returns the UDP socket opened by a service manager at an address, or nil if there is
// none. Each socket is returned once.
func (e *Env) InheritedUDP(address string) *net.UDPConn {
	if e.sockets == nil {
		return nil
	}
	return e.sockets.Packets(address)
}

// Listen returns the listener opened by a service manager at address, or opens a listener.
func (e *Env) Listen(network, address string) (net.Listener, error) {
	if l := e.Inherited(address); l != nil {
		return l, nil
	}
	return net.Listen(network, address)
}

// Ready reports to the service manager that every listener is open, and starts the watchdog notices
// if the manager has set an interval. A passed socket without a listener is logged.
func (e *Env) Ready() error {
	if e.sockets != nil {
		for _, a := range e.sockets.Left() {
			e.Log.Warn("socket of the service manager not used: no --listen has its address", "local", a.String())
		}
	}
	every, err := systemd.WatchdogInterval()
	if err != nil {
		return err
	}
	if os.Getenv("NOTIFY_SOCKET") != "" { // the manager may send SIGHUP as soon as the service is ready
		e.mu.Lock()
		e.takeHangupLocked()
		e.mu.Unlock()
	}
	if err := systemd.Notify("READY=1"); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	e.ready = make(chan struct{})
	if every > 0 {
		go alive(e.ready, every/3)
	}
	return nil
}

// alive sends notices to the watchdog until done is closed.
func alive(done <-chan struct{}, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			systemd.Notify("WATCHDOG=1") // the next one makes up for a lost notice
		case <-done:
			return
		}
	}
}

// stopping ends the watchdog notices and reports the stop of the service.
func (e *Env) stopping() {
	if e.ready == nil {
		return
	}
	systemd.Notify("STOPPING=1")
	close(e.ready)
	e.ready = nil
}
