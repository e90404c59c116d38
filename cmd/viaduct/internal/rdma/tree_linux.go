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

// The RDMA files below /sys and /dev that programs see are a tree of files in a temporary directory
// of this process. A call with such a path is made in the tree for the program. An open directory
// is a directory of the tree, so that the kernel lists the directory and resolves relative paths.

// ourFolders are the directories of the system that the tree replaces.
var ourFolders = []string{"/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs",
	"/sys/class/misc/rdma_cm"}

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
	dev  uint64 // device number
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

// renderTree writes the tree to a new temporary directory. After an error, the directory is
// removed.
func (s *Service) renderTree() (err error) {
	dir, err := os.MkdirTemp("", "viaduct-rdma-")
	if err != nil {
		return err
	}
	// The path must equal the path the kernel reports for an open directory.
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
		// A device file every user may create, so that listings show one. It cannot be opened.
		if unix.Mknod(s.tree+path, unix.S_IFCHR|0o666, 0) != nil {
			if err = os.WriteFile(s.tree+path, nil, 0o444); err != nil {
				return err
			}
		}
	}
	return s.protectTree(0o555, 0o444)
}

// protectTree sets the modes of the tree's directories and files, whatever the umask is.
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
