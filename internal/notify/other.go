//go:build !linux || (!amd64 && !arm64)

package notify

// MaybeStub does nothing, because this system has no seccomp notifications.
func MaybeStub() {}
