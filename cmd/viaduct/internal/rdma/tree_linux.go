//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

// What programs find of RDMA below /sys and /dev is a tree of files in a folder of this process.
// A call on such a path is made there on the program's behalf; a folder that is opened is the one
// of the tree, so its list and names relative to it are the kernel's business.

// ourFolders are the parts of the system that the tree has.
var ourFolders = []string{"/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/misc/rdma_cm"}

// isOurs reports whether a path is in the tree.
func isOurs(path string) bool {
	for _, f := range ourFolders {
		if rest, ok := strings.CutPrefix(path, f); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// A node is a device file.
type node struct {
	dev  uint64 // number of the device
	open func(c *notify.Call, flags int) error
}

// deviceNodes returns the device files by path.
func (s *Service) deviceNodes() map[string]*node {
	m := map[string]*node{"/dev/infiniband/rdma_cm": {abi.CMDev, s.openCM}}
	for _, d := range s.devices {
		m["/dev/infiniband/"+d.found.Uverbs] = &node{d.found.UverbsDev, func(c *notify.Call, flags int) error {
			return s.openUverbs(c, d, flags)
		}}
	}
	return m
}

// treeFiles returns the files of the tree, and its symbolic links, by path.
func (s *Service) treeFiles() (files, links map[string]string) {
	links = map[string]string{}
	files = map[string]string{
		"/sys/class/misc/rdma_cm/abi_version":     "4",
		"/sys/class/misc/rdma_cm/dev":             "10:121",
		"/sys/class/infiniband_verbs/abi_version": "6",
	}
	for i, d := range s.devices {
		ib := "/sys/class/infiniband/" + d.found.Name + "/"
		uv := "/sys/class/infiniband_verbs/" + d.found.Uverbs + "/"
		for _, f := range d.sysFiles() {
			files[ib+f.name] = f.text
		}
		files[uv+"ibdev"] = d.found.Name
		files[uv+"abi_version"] = strconv.FormatUint(d.is.driver.ABI, 10)
		files[uv+"dev"] = fmt.Sprintf("%d:%d", uverbsMajor, uverbsMinor+i)
		links[uv+"device"] = "../../infiniband/" + d.found.Name + "/device"
		if n := d.found.NetName; n != "" {
			links[ib+"device/net/"+n] = "/sys/class/net/" + n
		}
	}
	return files, links
}

// renderTree makes the tree.
func (s *Service) renderTree() (err error) {
	dir, err := os.MkdirTemp("", "viaduct-rdma-")
	if err != nil {
		return err
	}
	// As the kernel names it, where a folder is asked for.
	if s.tree, err = filepath.EvalSymlinks(dir); err != nil {
		s.tree = dir
	}
	defer func() {
		if err != nil {
			s.removeTree()
		}
	}()
	files, links := s.treeFiles()
	for path, text := range files {
		if err = os.MkdirAll(filepath.Dir(s.tree+path), 0o755); err == nil {
			err = os.WriteFile(s.tree+path, []byte(text+"\n"), 0o444)
		}
		if err != nil {
			return err
		}
	}
	for path, to := range links {
		if err = os.MkdirAll(filepath.Dir(s.tree+path), 0o755); err == nil {
			err = os.Symlink(to, s.tree+path)
		}
		if err != nil {
			return err
		}
	}
	if err = os.MkdirAll(s.tree+"/dev/infiniband", 0o755); err != nil {
		return err
	}
	for path := range s.nodes {
		// The one device file that everybody may make, so that folders show one. It can't be opened.
		if unix.Mknod(s.tree+path, unix.S_IFCHR|0o666, 0) != nil {
			if err = os.WriteFile(s.tree+path, nil, 0o444); err != nil {
				return err
			}
		}
	}
	return s.protectTree(0o555, 0o444)
}

// protectTree sets the modes of folders and files below the folder of the tree, whatever the umask is.
func (s *Service) protectTree(folder, file fs.FileMode) error {
	return filepath.WalkDir(s.tree, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || path == s.tree:
			return err
		case e.IsDir():
			return os.Chmod(path, folder)
		case e.Type().IsRegular():
			return os.Chmod(path, file)
		}
		return nil
	})
}

func (s *Service) removeTree() {
	s.protectTree(0o755, 0o644)
	os.RemoveAll(s.tree)
}
