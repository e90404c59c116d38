// Package testkit has the helpers shared by the tests of this module: an in-memory stream with
// faults ([Pipe], [Fault]), a scripted peer ([Peer]), hex vectors ([Hex], [CheckVectors]), golden
// files ([Golden]) and the leak check of a TestMain ([Main]).
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
//
//	func TestSplit(t *testing.T) {
//		a, b := testkit.Pipe()
//		a.Fault(testkit.SplitReads(1), testkit.CutAfter(100))
//		...
//	}
//
// Everything works inside a testing/synctest bubble: a goroutine waiting in a [Conn] counts as
// durably blocked, and deadlines follow the bubble's clock.
//
// Only tests import this package.
package testkit
