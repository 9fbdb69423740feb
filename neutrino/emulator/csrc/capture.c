#include "capture.h"
CUresult ed_capture_operation(struct ed_queue *queue, struct ed_operation *operation, bool *captured) { (void)queue; (void)operation; (void)captured; return 0; }
CUresult ed_capture_waits_for(struct ed_queue *queue) { (void)queue; return 0; }
CUresult ed_capture_forbids(struct ed_queue *queue) { (void)queue; return 0; }
CUresult ed_capture_unsafe(void) { return 0; }
CUresult ed_capture_wait(struct ed_queue *queue, CUevent event, bool *captured) { (void)queue; (void)event; (void)captured; return 0; }
CUresult ed_capture_record(struct ed_queue *queue, CUevent event, bool *captured) { (void)queue; (void)event; (void)captured; return 0; }
CUresult ed_capture_asks_event(CUevent event) { (void)event; return 0; }
void ed_capture_stream_gone(struct ed_queue *queue) { (void)queue; }
void ed_capture_event_gone(CUevent event) { (void)event; }
