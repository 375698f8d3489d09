// Reads metrics as Prometheus 3 does when it scrapes them, by its own parser:
//
//	prometheus_parser CONTENT_TYPE < metrics
//
// Prints each series with its value, as a JSON object a line. Exits with 1 and the parser's words if it refuses the
// content type, a line, or a name that older versions would not take.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

type series struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

func main() {
	if err := parse(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(contentType string) error {
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	parser, err := textparse.New(content, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil { // a parser with an error is one that Prometheus has guessed, and warns about
		return err
	}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var found labels.Labels
		parser.Labels(&found)
		name := found.Get(model.MetricNameLabel)
		if !model.LegacyValidation.IsValidMetricName(name) {
			return fmt.Errorf("%q is not a name that every version takes", name)
		}
		_, _, value := parser.Series()
		line, err := json.Marshal(series{found.Map(), strconv.FormatFloat(value, 'g', -1, 64)})
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
}
