//go:build !linux

package nvme

import "os"

// A file is a disk that cannot discard ranges.
type file struct{ *os.File }
