package notify

import "golang.org/x/sys/unix"

const (
	auditArch   = unix.AUDIT_ARCH_X86_64
	auditCompat = unix.AUDIT_ARCH_I386
	hasX32      = true
)
