rule prompts:
    input:
        unpack(FLOW.inputs("prompts")),
    output:
        f"{RESULTS}/prompts/{{study}}/{{model}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/prompts/{{study}}/{{model}}/{{group}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
    params:
        spec=FLOW.specs("prompts"),
        code=FLOW.codes("prompts"),
        named=FLOW.named_inputs("prompts"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --input {params.named:q} --output {output} > {log} 2>&1"
