//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A place is the file a path refers to.
type place struct {
	path string // path from the program's root, without symbolic links
	host string // path of the file for this process
	node *node  // set for a device file
	ours bool   // in the tree; otherwise a file of the system that is reached through the tree
}

const maxPath = 4096 // PATH_MAX

// name reads a path from the program's memory. It returns false if the memory cannot be read, or the
// path is empty or too long.
func (s *Service) name(c *notify.Call, addr uint64) ([]byte, bool) {
	const step = 256 // most paths are shorter
	var b []byte
	for n := 0; n < maxPath; {
		// The next page may not be mapped.
		k := min(step, pageSize-int((addr+uint64(n))%pageSize), maxPath-n)
		b = append(b, make([]byte, k)...)
		if _, err := c.ReadMem(addr+uint64(n), b[n:]); err != nil {
			return nil, false
		}
		if i := bytes.IndexByte(b[n:], 0); i >= 0 {
			return b[:n+i], n+i > 0
		}
		n += k
	}
	return nil, false
}

// words are parts of the names of all devices of RDMA, and of the topmost directories of the tree.
var words = [][]byte{[]byte("infiniband"), []byte("rdma_cm"), []byte("uverbs")}

// mayLead reports whether a path could refer to a file of ours. It makes the cheap checks that rule
// out most paths. A path relative to a directory of the tree needs no help, because the kernel
// finds the files there, except devices and anything above the directory.
func (s *Service) mayLead(tid, dir int, name []byte, itself bool) bool {
	for _, w := range words {
		if bytes.Contains(name, w) {
			return true
		}
	}
	relative := name[0] != '/'
	if relative && bytes.Contains(name, []byte("..")) {
		return strings.HasPrefix(s.folder(tid, dir), s.tree)
	}
	// A symbolic link may lead to a file of ours. The kernel does not find the link's target then.
	at := string(name)
	if relative {
		at = folderLink(tid, dir) + "/" + at
	}
	if itself {
		at = filepath.Dir(at)
	}
	if unix.Faccessat(unix.AT_FDCWD, at, unix.F_OK, 0) != unix.ENOENT {
		return false
	}
	// The path does not exist. If the directory of the path exists, only the last name can be a
	// link to a file of ours.
	var b [1]byte
	_, err := unix.Readlink(at, b[:])
	return err == nil || unix.Faccessat(unix.AT_FDCWD, filepath.Dir(at), unix.F_OK, 0) == unix.ENOENT
}

// folderLink returns the link in /proc to the directory that paths are relative to.
func folderLink(tid, dir int) string {
	if dir == unix.AT_FDCWD {
		return "/proc/" + strconv.Itoa(tid) + "/cwd"
	}
	return procFD(tid, dir)
}

// folder returns the path of the directory that paths are relative to, or "" if unknown.
func (s *Service) folder(tid, dir int) string {
	p, _ := os.Readlink(folderLink(tid, dir))
	return p
}

// maxLinks is how many symbolic links a path may use, as in the kernel.
const maxLinks = 40

// resolve finds the file of ours, or reached through ours, that a path refers to. It returns false
// for any other file. Each element is looked up in the tree if present there, otherwise in the
// system as seen by the thread.
func (s *Service) resolve(tid, dir int, name string, itself bool) (place, bool) {
	at, through := "/", false
	if name[0] != '/' {
		base := s.folder(tid, dir)
		if base == "" || base[0] != '/' { // for example, a pipe
			return place{}, false
		}
		if rest, ok := strings.CutPrefix(base, s.tree); ok {
			base, through = rest, true
		}
		at = filepath.Clean("/" + base)
	}
	slash := strings.HasSuffix(name, "/")
	for links, rest := 0, name; rest != ""; {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		if elem == "" || elem == "." {
			continue
		}
		at = filepath.Join(at, elem)
		if at == "/proc/self" || at == "/proc/thread-self" {
			at = "/proc/" + strconv.Itoa(tid)
		}
		through = through || isOurs(at)
		if strings.Trim(rest, "/") == "" && itself && !slash {
			break
		}
		to, err := os.Readlink(s.host(tid, at))
		if err != nil {
			continue
		}
		if links++; links > maxLinks {
			return place{}, false
		}
		if t, ok := strings.CutPrefix(to, s.tree); ok && !isOurs(at) { // /proc/PID/cwd, for instance
			to = t
		}
		if to == "" || to[0] == '/' {
			at = "/"
		} else {
			at = filepath.Dir(at)
		}
		rest = to + "/" + rest
	}
	p := place{path: at, host: s.host(tid, at), node: s.nodes[at], ours: isOurs(at)}
	return p, p.ours || through && sameRights(tid)
}

// host returns this process's path of a file of the program.
func (s *Service) host(tid int, path string) string {
	if isOurs(path) {
		return s.tree + path
	}
	return "/proc/" + strconv.Itoa(tid) + "/root" + path
}

// sameRights reports whether a thread has the rights of this process. Only then may this process
// open files outside of the tree for the thread.
func sameRights(tid int) bool {
	of := func(who string) (rights string) {
		b, _ := os.ReadFile("/proc/" + who + "/status")
		for line := range strings.Lines(string(b)) {
			switch name, _, _ := strings.Cut(line, ":"); name {
			case "Uid", "Gid", "Groups", "CapEff":
				rights += line
			}
		}
		return rights
	}
	r := of(strconv.Itoa(tid))
	return r != "" && r == of("self")
}
