//go:build !linux

package nvme

import "os"

// A file is a disk whose discarded ranges stay as they are.
type file struct{ *os.File }
