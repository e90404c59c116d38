// Package rdma serves RDMA devices to an unmodified program. The distribution's libibverbs and
// librdmacm find a device siw0 and use siw0 like the kernel's software iWARP. The data is iWARP
// over TCP. A device whose name begins with rxe is a RoCE device instead, see package rxe.
//
// The program's calls on files of RDMA are answered by seccomp notification (package notify).
// Instead of a character device, the program gets a stand-in at a number of a reserved range. For
// uverbs, the stand-in is a memfd whose mappings are the work and completion queues. For rdma_cm,
// the stand-in is a pipe. Only calls on the reserved numbers, and calls with a path, are notified.
// Posting and polling need no call, because both processes share the memory of the queues.
//
// All input from the program may be wrong: lengths, handles, addresses, and the rings at any
// moment. Payload is accessed through the program's /proc/PID/mem: an open descriptor refers to the
// same memory even if the process number is used again. Only payload in many pieces, or long
// payload, is accessed by process number, with precautions: see process.
package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A Device is a device for programs to find.
type Device struct {
	Name string // for example siw0
	// Addrs are the local addresses whose connections belong to the device. An empty list means all
	// addresses no other device has.
	Addrs []netip.Addr
}

// ParseDevice parses NAME[=ADDRESS[,ADDRESS]...].
func ParseDevice(s string) (Device, error) {
	name, list, has := strings.Cut(s, "=")
	d := Device{Name: name}
	if name == "" || len(name) > 15 ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
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

// ParseDevices parses the --device flags. Without any flag, ParseDevices returns siw0.
func ParseDevices(flags []string) ([]Device, error) {
	if len(flags) == 0 {
		return []Device{{Name: "siw0"}}, nil
	}
	var ds []Device
	seen := map[string]bool{}
	anywhere := map[bool]int{} // number of devices for all addresses, by whether they are RoCE
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

// isRoCE reports whether a RoCE device has the name. All others are iWARP devices.
func isRoCE(name string) bool { return strings.HasPrefix(name, "rxe") }
