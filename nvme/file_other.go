//go:build !linux

package nvme

import "os"

// A file is a disk without support for discarding ranges.
type file struct{ *os.File }
