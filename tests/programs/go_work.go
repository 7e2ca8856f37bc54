// Work that a Go program does past libc: a heap of maps under the garbage collector, goroutines that are preempted by
// signals, a web server and its clients in one process, children in a loop, and signals to itself. Prints checksums.
// Imports net, so it is linked with libc (cgo) unless CGO_ENABLED=0.
//
// Usage: go_work MEGABYTES [ROUNDS]
package main

import (
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func die(what string, err error) {
	fmt.Fprintln(os.Stderr, what, err)
	os.Exit(1)
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

type shard struct {
	seed    uint64
	numbers map[uint64]uint64
	texts   map[string][]byte
}

// About 1 MiB of maps.
func newShard(seed uint64) *shard {
	s := &shard{seed: seed, numbers: map[uint64]uint64{}, texts: map[string][]byte{}}
	for i := uint64(0); i < 8192; i++ {
		s.numbers[mix(seed<<20|i)] = i * seed
	}
	for i := uint64(0); i < 2048; i++ {
		value := make([]byte, 256)
		for j := range value {
			value[j] = byte(uint64(j/8) + i + seed)
		}
		s.texts["key "+strconv.FormatUint(seed*100000+i, 10)] = value
	}
	return s
}

func (s *shard) sum() (total uint64) {
	for k, v := range s.numbers {
		total += mix(k ^ v)
	}
	for k, v := range s.texts {
		h := fnv.New64a()
		h.Write([]byte(k))
		h.Write(v)
		total += h.Sum64()
	}
	return
}

func fill(count int) []*shard {
	shards := make([]*shard, count)
	var group sync.WaitGroup
	next := make(chan int)
	for w := 0; w < 4; w++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				shards[i] = newShard(uint64(i + 1))
			}
		}()
	}
	for i := range shards {
		next <- i
	}
	close(next)
	group.Wait()
	return shards
}

func sumAll(shards []*shard) (total uint64) {
	sums := make(chan uint64)
	for _, s := range shards {
		go func() { sums <- s.sum() }()
	}
	for range shards {
		total += <-sums
	}
	return
}

// Each request reads from the heap and answers with what lies there.
func serve(shards []*shard, requests int) (total uint64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		die("listen", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		s := shards[n%len(shards)]
		key := "key " + strconv.FormatUint(s.seed*100000+uint64(n%2048), 10)
		w.Write(s.texts[key])
		w.Write(body)
	})}
	go server.Serve(listener)
	url := "http://" + listener.Addr().String() + "/?n="
	sums := make(chan uint64)
	for c := 0; c < 8; c++ {
		go func() {
			var sum uint64
			client := &http.Client{Transport: &http.Transport{}}
			for i := c; i < requests; i += 8 {
				answer, err := client.Post(url+strconv.Itoa(i*7), "text/plain", strings.NewReader(strings.Repeat("x", i%5000)))
				if err != nil {
					die("post", err)
				}
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || len(body) != 256+i%5000 {
					die("body "+strconv.Itoa(len(body)), err)
				}
				h := fnv.New64a()
				h.Write(body)
				sum += h.Sum64()
			}
			sums <- sum
		}()
	}
	for c := 0; c < 8; c++ {
		total += <-sums
	}
	server.Close()
	return
}

func children(count int) (bytes int) {
	var group sync.WaitGroup
	var lock sync.Mutex
	for w := 0; w < 4; w++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := w; i < count; i += 4 {
				text := strings.Repeat(strconv.Itoa(i)+" ", 50)
				command := exec.Command("/bin/echo", text)
				command.Env = append(os.Environ(), "NUMBER="+strconv.Itoa(i))
				out, err := command.Output()
				if err != nil || string(out) != text+"\n" {
					die("echo "+string(out), err)
				}
				lock.Lock()
				bytes += len(out)
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	if err := exec.Command("/no/such/program").Run(); err == nil {
		die("a program that is not there ran", nil)
	}
	if err := exec.Command("/bin/false").Run(); err == nil || err.Error() != "exit status 1" {
		die("false", err)
	}
	return
}

// Signals to the process itself, SIGBUS among them: each arrives.
func signals(count int) int {
	came := make(chan os.Signal, 1)
	numbers := []syscall.Signal{syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGBUS, syscall.SIGUSR2}
	signal.Notify(came, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGBUS, syscall.SIGUSR2)
	defer signal.Stop(came)
	for i := 0; i < count; i++ {
		number := numbers[i%len(numbers)]
		syscall.Kill(os.Getpid(), number)
		select {
		case got := <-came:
			if got != number {
				die("another signal", fmt.Errorf("%v", got))
			}
		case <-time.After(20 * time.Second):
			die("no signal", fmt.Errorf("%v", number))
		}
	}
	return count
}

// A nil pointer is a panic that can be caught.
func recovered() (ok bool) {
	defer func() { ok = recover() != nil }()
	var s *shard
	return len(s.numbers) > 1<<30
}

func main() {
	megabytes, err := strconv.Atoi(os.Args[1])
	if err != nil {
		die("usage: go_work MEGABYTES [ROUNDS]", err)
	}
	rounds := 2
	if len(os.Args) > 2 {
		rounds, _ = strconv.Atoi(os.Args[2])
	}
	debug.SetGCPercent(50)
	shards := fill(megabytes)
	fmt.Println("filled", sumAll(shards))
	for r := 0; r < rounds; r++ {
		fmt.Println("served", serve(shards, 400))
		fmt.Println("children", children(40))
		fmt.Println("signals", signals(40))
		for i := 0; i < len(shards); i += 3 {
			shards[i] = newShard(uint64(i+1) + uint64(r+1)*1000)
		}
		runtime.GC()
		fmt.Println("heap", sumAll(shards))
	}
	debug.FreeOSMemory()
	fmt.Println("recovered", recovered(), "again", sumAll(shards))
}
