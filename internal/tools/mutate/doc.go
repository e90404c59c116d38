// Mutate measures how well the tests guard the code behind the requirements.
//
// It takes the code of each citation in a package: the function or statement below the comment, or
// the statement before the comment on the line. It makes one small change at a time. Then it runs
// the tests citing the same rows, then the other tests of the package and of packages whose tests
// cite the rows. A failing test kills the mutant:
//
//	go run ./internal/tools/mutate -pkg internal/wire/mpa   # one package, or several with commas
//	go run ./internal/tools/mutate                          # all; takes hours
//	go run ./internal/tools/mutate -n 200 -seed 7 -pkg sdp  # 200 mutants of the package, at random
//	go run ./internal/tools/mutate -sample 3m -seed 7       # packages and mutants at random
//	go run ./internal/tools/mutate -write -pkg sdp          # renew the figures in docs/mutation.md
//	go run ./internal/tools/mutate -list -pkg sdp           # only list the mutants
//	go run ./internal/tools/mutate -n 200 -own -pkg vitcp   # without the tests of other packages, because commands take long to build
//	go run ./internal/tools/mutate -v -cited -only link_recv -pkg vitcp  # those of a file, by the tests that cite their rows
//	go run ./internal/tools/mutate -write -pkg fcvi -notes fcvi.notes # in pieces: mutants that cited tests killed in an earlier run are not tried again
//
// The exit status is 1 if the cited tests kill less than 95 percent, or the package's tests less
// than 98. A sample runs the cited tests alone and is compared with the figures in
// docs/mutation.md: the sample fails if the tests miss more mutants than chance explains. Mutants
// no test can kill are listed with the reason in accepted.txt, and are not counted.
//
// # How
//
// All mutants of a package are compiled in at once. An environment variable switches a mutant on,
// so that a single build serves all mutants, and trying a mutant costs only the test. The tree is
// not changed: the mutated files are an overlay of the build. Each test runs once without a mutant
// and reports the reached switches, if the values there make a difference. For a mutant only the
// tests reaching its switch are run.
//
// A constant declaration can't have a switch, but each use of the constant can. Functions that
// render a value for people (String, LogValue) have no mutants, nor have logs and values returned
// with an error or false. A row guarded by the provider contract of internal/vitest counts as cited
// by the tests running the contract.
package main
