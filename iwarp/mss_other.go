//go:build !linux

package iwarp

// askSegmentSize returns 0, because this system does not report a segment size.
func askSegmentSize(controller) int { return 0 }
