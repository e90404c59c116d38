// Package rdma serves RDMA devices to an unmodified program: libibverbs and
// librdmacm of the distribution find a device siw0 and drive it as they would the
// kernel's software iWARP, and what they send is iWARP on TCP.
//
// The program's calls on the files of RDMA are answered by seccomp notification
// (package notify). What the program holds instead of a character device are
// stand-ins at numbers of a reserved range: a memfd for uverbs, whose mappings
// are the work and completion queues, and a pipe for rdma_cm. Only calls on
// those numbers, and calls that name a path, are notified; posting and polling are
// memory of both processes.
//
// Everything that comes from the program may be wrong: lengths, handles, addresses,
// and the rings at any moment. Payload is read and written through the
// program's /proc/PID/mem, which keeps naming the same memory whatever becomes
// of the process number. Only what is read in many pieces, or is long, is read by that number,
// which is guarded: see process.
package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A Device is what a program finds.
type Device struct {
	Name string // siw0
	// Addrs are the local addresses by which connections belong to the device;
	// none stands for all that no other device has.
	Addrs []netip.Addr
}

// ParseDevice reads NAME[=ADDRESS[,ADDRESS]...].
func ParseDevice(s string) (Device, error) {
	name, list, has := strings.Cut(s, "=")
	d := Device{Name: name}
	if name == "" || len(name) > 15 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return d, fmt.Errorf("--device %q: a name has up to 15 letters and digits", s)
	}
	if !has {
		return d, nil
	}
	for a := range strings.SplitSeq(list, ",") {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return d, fmt.Errorf("--device %q: %q is no address", s, a)
		}
		d.Addrs = append(d.Addrs, ip.Unmap().WithZone(""))
	}
	return d, nil
}

// ParseDevices reads the --device flags; none stands for siw0.
func ParseDevices(flags []string) ([]Device, error) {
	if len(flags) == 0 {
		return []Device{{Name: "siw0"}}, nil
	}
	var ds []Device
	seen := map[string]bool{}
	anywhere := map[bool]int{} // by whether it is a RoCE device
	for _, s := range flags {
		d, err := ParseDevice(s)
		if err != nil {
			return nil, err
		}
		if seen[d.Name] {
			return nil, fmt.Errorf("--device %s: there are two", d.Name)
		}
		seen[d.Name] = true
		if len(d.Addrs) == 0 {
			anywhere[isRoCE(d.Name)]++
		}
		for _, a := range d.Addrs {
			if seen[a.String()] {
				return nil, fmt.Errorf("--device %s: %v belongs to another device already", d.Name, a)
			}
			seen[a.String()] = true
		}
		ds = append(ds, d)
	}
	if max(anywhere[false], anywhere[true]) > 1 {
		return nil, errors.New("--device: one device of a kind can be without addresses, the others need theirs")
	}
	return ds, nil
}

// isRoCE reports whether a device of a name is a RoCE device. The others are of iWARP.
func isRoCE(name string) bool { return strings.HasPrefix(name, "rxe") }
