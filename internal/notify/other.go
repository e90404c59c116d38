//go:build !linux || (!amd64 && !arm64)

package notify

// MaybeStub does nothing: there are no notifications on this system.
func MaybeStub() {}
