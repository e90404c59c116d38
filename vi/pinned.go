package vi

import "viaduct/internal/regmem"

// Memory is registered memory that a transfer may touch now: the bytes, B, and the pin that
// keeps their region from being deregistered, until Release, which is called once. The zero
// Memory is empty and pins nothing. Where Guarded is true, touching B may fault, as the memory
// is a mapped file that can shrink: such bytes are moved by CopyTo and CopyFrom, which report
// that as an error.
type Memory regmem.Ref // so that the providers of this module convert one at no cost

// B returns the bytes. They are not to be kept past Release.
func (m Memory) B() []byte { return regmem.Ref(m).B() }

// Len returns the number of bytes.
func (m Memory) Len() int { return regmem.Ref(m).Len() }

// Guarded reports whether touching B may fault.
func (m Memory) Guarded() bool { return regmem.Ref(m).Guarded() }

// CopyFrom copies src, of the same length, into the memory.
func (m Memory) CopyFrom(src []byte) error { return regmem.Ref(m).CopyFrom(src) }

// CopyTo copies the memory to dst, of the same length.
func (m Memory) CopyTo(dst []byte) error { return regmem.Ref(m).CopyTo(dst) }

// Release gives the pin back.
func (m Memory) Release() { regmem.Ref(m).Release() }
