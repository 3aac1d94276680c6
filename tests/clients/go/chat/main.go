// A chat with a tool, from the contract's stubs alone: prints what the model thinks, says and calls.
//
// Usage: chat ADDRESS REQUEST_ID PROMPT
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"

	batonv1 "baton/v1"
)

const parameters = `{"type": "object", "properties": {"cmd": {"type": "string"}}}`

func main() {
	address, requestID, prompt := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := grpc.DialContext(ctx, address, grpc.WithInsecure(), grpc.WithBlock())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	maxTokens, temperature := uint32(100), float64(0)
	stream, err := batonv1.NewInferenceServiceClient(connection).Generate(ctx, &batonv1.GenerateRequest{
		RequestId: requestID,
		Input: &batonv1.GenerateRequest_Chat{Chat: &batonv1.ChatInput{
			Messages: []*batonv1.ChatMessage{{Role: "user", Content: prompt}},
			Tools:    []*batonv1.Tool{{Name: "f", Parameters: parameters}},
		}},
		Sampling: &batonv1.SamplingParams{Temperature: &temperature},
		Stop:     &batonv1.StopRules{MaxTokens: &maxTokens},
	})
	if err != nil {
		log.Fatal(err)
	}
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		event := response.GetEvent()
		show(event.GetTokens().GetDeltas())
		show(event.GetChoiceFinished().GetDeltas())
	}
}

func show(deltas []*batonv1.Delta) {
	for _, delta := range deltas {
		switch kind := delta.GetDelta().(type) {
		case *batonv1.Delta_Reasoning:
			fmt.Printf("reasoning %q\n", kind.Reasoning)
		case *batonv1.Delta_Content:
			fmt.Printf("content %q\n", kind.Content)
		case *batonv1.Delta_CallBegun:
			fmt.Printf("call %d begins: %s\n", kind.CallBegun.Index, kind.CallBegun.Name)
		case *batonv1.Delta_CallArguments:
			fmt.Printf("call %d arguments %q\n", kind.CallArguments.Index, kind.CallArguments.Text)
		case *batonv1.Delta_CallEnded:
			fmt.Printf("call %d ends\n", kind.CallEnded.Index)
		}
	}
}
