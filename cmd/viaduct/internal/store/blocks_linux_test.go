package store

import (
	"io/fs"
	"syscall"
)

// blocks returns how many bytes of the disk a file uses.
func blocks(st fs.FileInfo) (int64, bool) {
	s, ok := st.Sys().(*syscall.Stat_t)
	return s.Blocks * 512, ok
}
