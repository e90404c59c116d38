//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/roceudp"
)

// checkWire tries to open the UDP port of each address of a RoCE device. Without the port, programs
// reach only other programs under the same command.
func checkWire(d Device) Finding {
	f := Finding{What: d.Name, Good: true, Says: "other hosts are reached by RoCEv2 from UDP port 4791"}
	var own, says []string
	for _, g := range roceGIDs(&device{addrs: d.Addrs}) {
		a := netip.AddrFrom16(g.gid).Unmap()
		if !rxe.OnWire(g.gid) {
			continue
		}
		own = append(own, a.String())
		if why := portTaken(a); why != "" {
			says = append(says, why)
		}
	}
	switch {
	case len(says) > 0:
		f.Warn, f.Says = true, strings.Join(says, "; ")+": programs under one command reach each other, and no other host from there"
		f.Do = "give the device an address of its own (--device " +
			d.Name + "=ADDRESS), or take the kernel's device away (rdma link delete)"
	case len(own) == 0:
		f.Warn, f.Says = true, "this host has no address for RoCEv2: programs reach those under the same command"
	default:
		f.Says += " of " + strings.Join(own, ", ")
	}
	return f
}

// portTaken returns why the UDP port of RoCEv2 cannot be opened at an address, or "" for a free
// port.
func portTaken(a netip.Addr) string {
	err := roceudp.Check(a)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EADDRINUSE):
		who := rxe.PortUser(a)
		if who == "" {
			who = "another process"
		}
		return fmt.Sprintf("%s has UDP port 4791 of %v", who, a)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Sprintf("%v is no address of this host", a)
	}
	return err.Error()
}
