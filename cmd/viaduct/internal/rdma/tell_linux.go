//go:build linux && (amd64 || arm64)

package rdma

// tellOnce tells the user something that the program's own error does not say, once for each
// subject: a program may try again and again.
func (s *Service) tellOnce(subject, format string, args ...any) {
	if s.opt.Tell == nil {
		return
	}
	if _, told := s.told.LoadOrStore(subject, true); !told {
		s.opt.Tell(format, args...)
	}
}
