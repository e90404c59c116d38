// Sbom writes the bill of materials of a Go program, as SPDX 2.3 in JSON: the program, the Go
// toolchain's library and every linked module, with versions, as recorded in the program itself.
//
//	go run ./internal/tools/sbom [-version V] [-o FILE] PROGRAM
//
// The same program gives the same bytes, because the time is SOURCE_DATE_EPOCH or the commit's.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

type document struct {
	SPDXVersion   string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	SPDXID        string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name      string     `json:"name"`
	SPDXID    string     `json:"SPDXID"`
	Version   string     `json:"versionInfo,omitempty"`
	Location  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	License   string     `json:"licenseConcluded"`
	Declared  string     `json:"licenseDeclared"`
	Copyright string     `json:"copyrightText"`
	Checksums []checksum `json:"checksums,omitempty"`
	Refs      []ref      `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type ref struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	version := flag.String("version", "", "version of the program; that which it records if left out")
	out := flag.String("o", "", "write to this `FILE` instead of standard output")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("the program is missing: sbom [-version V] [-o FILE] PROGRAM")
	}
	program, err := os.ReadFile(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	info, err := buildinfo.ReadFile(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	d := describe(filepath.Base(flag.Arg(0)), *version, sha256.Sum256(program), info, when(info))
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	b = append(b, '\n')
	if *out == "" {
		os.Stdout.Write(b)
	} else if err := os.WriteFile(*out, b, 0o644); err != nil {
		log.Fatal(err)
	}
}

// when returns the time of the document: SOURCE_DATE_EPOCH, or else the time of the commit, or else
// now.
func when(info *debug.BuildInfo) time.Time {
	if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(n, 0)
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t
			}
		}
	}
	return time.Now()
}

// describe returns the document of a program.
func describe(name, version string, sum [sha256.Size]byte, info *debug.BuildInfo, at time.Time) document {
	if version == "" {
		version = info.Main.Version
	}
	digest := hex.EncodeToString(sum[:])
	d := document{SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://spdx.org/spdxdocs/" + name + "-" + digest,
		Creation:  creation{at.UTC().Format(time.RFC3339), []string{"Tool: viaduct-sbom"}}}
	add := func(p spdxPackage, relation, of string) {
		p.Location, p.License, p.Copyright = "NOASSERTION", "NOASSERTION", "NOASSERTION"
		if p.Declared == "" {
			p.Declared = "NOASSERTION"
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{of, relation, p.SPDXID})
	}
	main := "SPDXRef-" + name
	add(spdxPackage{Name: name, SPDXID: main, Version: version, Declared: "Apache-2.0",
		Checksums: []checksum{{"SHA256", digest}}}, "DESCRIBES", d.SPDXID)
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	add(spdxPackage{Name: "stdlib", SPDXID: "SPDXRef-stdlib", Version: goVersion, Declared: "BSD-3-Clause",
		Refs: []ref{{"PACKAGE-MANAGER", "purl", "pkg:golang/stdlib@" + goVersion}}}, "DEPENDS_ON", main)
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(spdxPackage{Name: m.Path, SPDXID: fmt.Sprintf("SPDXRef-module-%d", i+1), Version: m.Version,
			Refs: []ref{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}}, "DEPENDS_ON", main)
	}
	return d
}
