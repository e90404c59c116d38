package vi

import "viaduct/internal/regmem"

// Memory is registered memory a transfer may access now. It has the bytes, B, and a pin that delays
// the deregistration of their region until Release. Release must be called exactly once. The zero
// Memory is empty and pins nothing. If Guarded is true, accessing B may fault, because the memory
// is a mapped file and may be truncated. CopyTo and CopyFrom return a fault as an error.
type Memory regmem.Ref // this underlying type makes the conversion free for the providers of this module

// B returns the bytes. They must not be used after Release.
func (m Memory) B() []byte { return regmem.Ref(m).B() }

// Len returns the number of bytes.
func (m Memory) Len() int { return regmem.Ref(m).Len() }

// Guarded reports whether accessing B may fault.
func (m Memory) Guarded() bool { return regmem.Ref(m).Guarded() }

// CopyFrom copies src, of the same length, into the memory. The error reports a memory fault.
func (m Memory) CopyFrom(src []byte) error { return regmem.Ref(m).CopyFrom(src) }

// CopyTo copies the memory to dst, of the same length. The error reports a memory fault.
func (m Memory) CopyTo(dst []byte) error { return regmem.Ref(m).CopyTo(dst) }

// Release releases the pin.
func (m Memory) Release() { regmem.Ref(m).Release() }
