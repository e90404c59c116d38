//go:build linux && (amd64 || arm64)

package rdma

// tellOnce prints a line for the user that the program's own error does not contain. It does so
// once for each subject, because a program may try repeatedly.
func (s *Service) tellOnce(subject, format string, args ...any) {
	if s.opt.Tell == nil {
		return
	}
	if _, told := s.told.LoadOrStore(subject, true); !told {
		s.opt.Tell(format, args...)
	}
}
