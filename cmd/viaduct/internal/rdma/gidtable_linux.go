//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A gidTable holds the addresses of a port by index. It only grows: a lost address of an interface
// keeps the index, because programs remember indexes, and some give up at a missing index.
type gidTable struct {
	mu  sync.RWMutex
	all []gidEntry // guarded by mu; entries do not change
}

// entries returns the table. Callers must not change the table.
func (t *gidTable) entries() []gidEntry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all
}

func (t *gidTable) add(more ...gidEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all[:len(t.all):len(t.all)], more...)
}

// lacking returns the entries of a list missing in the table.
func (t *gidTable) lacking(now []gidEntry) (new []gidEntry) {
	had := t.entries()
	for _, g := range now {
		if !slices.ContainsFunc(had, func(h gidEntry) bool { return h.gid == g.gid }) {
			new = append(new, g)
		}
	}
	return new
}

// gidFiles returns the files of sysfs for an entry.
func gidFiles(i int, g gidEntry) []sysFile {
	return []sysFile{
		{fmt.Sprintf("ports/1/gids/%d", i), g.String()},
		{fmt.Sprintf("ports/1/gid_attrs/types/%d", i), g.kind.String()},
		{fmt.Sprintf("ports/1/gid_attrs/ndevs/%d", i), g.ndev},
	}
}

// watchAddresses adds new addresses of interfaces to the devices with the addresses of all
// interfaces, until the service ends.
func (s *Service) watchAddresses() {
	if !slices.ContainsFunc(s.devices, (*device).followsInterfaces) {
		return
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		s.log.Debug("addresses are not watched", "err", err)
		return
	}
	changes := os.NewFile(uintptr(fd), "netlink")
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		s.log.Debug("addresses are not watched", "err", err)
		changes.Close()
		return
	}
	s.wg.Go(func() {
		<-s.done
		changes.Close()
	})
	s.wg.Go(func() {
		b := make([]byte, 32<<10)
		for {
			// The content of the message does not matter, and neither does an overflow of the
			// socket (ENOBUFS).
			if _, err := changes.Read(b); err != nil && unixErrno(err) != unix.ENOBUFS {
				return
			}
			s.addAddresses()
		}
	})
}

func unixErrno(err error) unix.Errno {
	if e, ok := err.(*os.PathError); ok {
		err = e.Err
	}
	e, _ := err.(unix.Errno)
	return e
}

// followsInterfaces reports whether the device has the addresses of all interfaces, including later
// addresses.
func (d *device) followsInterfaces() bool { return d.is == roce && len(d.addrs) == 0 }

// addAddresses adds new addresses of interfaces to the devices, and notifies programs. It first
// adds the files, then extends the table, and then sends the event.
func (s *Service) addAddresses() {
	for _, d := range s.devices {
		if !d.followsInterfaces() {
			continue
		}
		more := d.gids.lacking(d.is.gids(d))
		if len(more) == 0 {
			continue
		}
		for i, g := range more {
			if err := s.addTreeFiles(d, gidFiles(len(d.gids.entries())+i, g)); err != nil {
				s.log.Warn("sysfs lacks an address", "device", d.found.Name, "gid", g.String(), "err", err)
			}
			s.explain("%s has a new address at index %d: %s of %s", d.found.Name, len(d.gids.entries())+i, g, g.ndev)
		}
		d.gids.add(more...)
		d.setGIDs()
		for _, x := range d.contexts() {
			x.raisePort(abi.AsyncGIDChange)
		}
	}
}

// addTreeFiles adds files of a device to the tree, whose directories are read-only.
func (s *Service) addTreeFiles(d *device, files []sysFile) error {
	for _, f := range files {
		path := s.tree + "/sys/class/infiniband/" + d.found.Name + "/" + f.name
		dir := filepath.Dir(path)
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		err := os.WriteFile(path, []byte(f.text+"\n"), 0o444)
		if err == nil {
			err = os.Chmod(path, 0o444)
		}
		if cerr := os.Chmod(dir, 0o555); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contexts returns the open contexts of the device.
func (d *device) contexts() (all []*context) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	for _, f := range d.s.files {
		if x, ok := f.(*context); ok && x.dev == d {
			all = append(all, x)
		}
	}
	return all
}

// raisePort sends an asynchronous event of the port. Such events are not counted.
func (x *context) raisePort(t abi.AsyncType) {
	const port = 1
	x.mu.Lock()
	n := &notifier{ch: x.async}
	x.mu.Unlock()
	n.raise(port, t)
}
