package store

import (
	"io/fs"
	"syscall"
)

// blocks is how much of the disk a file takes.
func blocks(st fs.FileInfo) (int64, bool) {
	s, ok := st.Sys().(*syscall.Stat_t)
	return s.Blocks * 512, ok
}
